//! What was tried against the server, and what it does. `docs/security.md` has the same table for people; a test compares the two.

#![allow(missing_docs)]

mod house;
mod requests;
mod sockets;
mod streams;

use std::collections::BTreeSet;
use std::path::Path;

use house::{Door, House};

/// Something that is tried.
struct Attack {
    /// As it stands in the table of `docs/security.md`.
    what: &'static str,
    door: Door,
    /// Tries it; whatever should not be is a panic.
    attempt: fn(&House),
}

/// What is tried at `/push`, as it stands in the same table, and by which test in `tests/pushes.rs`.
const PUSHES: &[(&str, &str)] = &[
    (
        "at `/push`: no process, no notes, no recording, a truncated one, or one that does not continue where it stopped",
        "what_should_not_be_said_ends_the_one_who_says_it",
    ),
    (
        "at `/push`: a message larger than a full state can be",
        "what_should_not_be_said_ends_the_one_who_says_it",
    ),
    ("at `/push`: an idle client", "who_says_nothing_is_let_go"),
    (
        "at `/push`: the identity of a connected process",
        "a_process_that_comes_twice_is_listened_to_where_it_came_last",
    ),
];

/// Tries everything, each on a server that others watch meanwhile, and go on watching.
fn check(attacks: &[Attack]) {
    let folder = tempfile::tempdir().expect("a folder");
    for Attack { what, door, attempt } in attacks {
        println!("{what} ({door:?})");
        let mut house = House::new(*door, folder.path());
        attempt(&house);
        house.check_honest(what);
        assert_eq!(*house.marks.lock().unwrap(), [""; 0], "{what}: a command was obeyed");
    }
}

#[test]
fn the_documentation_has_every_attack() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let text = std::fs::read_to_string(path).expect("the documentation");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let told: BTreeSet<&str> = rows.skip_while(|row| *row != "attempt").skip(2).collect();
    let others = streams::ATTACKS.iter().chain(sockets::ATTACKS).map(|attack| attack.what);
    let pushes = include_str!("../pushes.rs");
    let pushed = PUSHES.iter().map(|(what, test)| {
        assert!(pushes.contains(&format!("#[test]\nfn {test}()")), "tests/pushes.rs does not try {what}");
        *what
    });
    let tried: BTreeSet<&str> = requests::tried().chain(others).chain(pushed).collect();
    let missing: Vec<_> = tried.difference(&told).collect();
    assert!(missing.is_empty(), "not in docs/security.md: {missing:#?}");
    let untried: Vec<_> = told.difference(&tried).collect();
    assert!(untried.is_empty(), "in docs/security.md and not tried: {untried:#?}");
}
