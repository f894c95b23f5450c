//! Attacks on the server. `docs/security.md` lists them with their outcomes; a test compares the
//! list.

mod requests;
mod server;
mod sockets;
mod streams;

use std::collections::BTreeSet;
use std::path::Path;

use server::{Protection, TestServer};

/// One attack.
struct Attack {
    /// The name, as in the table of `docs/security.md`.
    name: &'static str,
    protection: Protection,
    /// Runs the attack, and panics if the server does not defend itself.
    run: fn(&TestServer),
}

/// Attacks on `/push`: their names in `docs/security.md`, and their tests in `tests/pushes.rs`.
const PUSH_ATTACKS: &[(&str, &str)] = &[
    (
        "at `/push`: no process, no notes, no recording, a truncated one, or one that does not continue \
         where it stopped",
        "invalid_pushes_disconnect_only_their_process",
    ),
    ("at `/push`: a message larger than a full state can be", "invalid_pushes_disconnect_only_their_process"),
    ("at `/push`: an idle client", "idle_client_is_disconnected"),
    ("at `/push`: the identity of a connected process", "newer_connection_of_a_process_replaces_the_older"),
];

/// Runs each attack on its own server, whose viewers must receive everything.
fn check(attacks: &[Attack]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for Attack { name, protection, run } in attacks {
        println!("{name} ({protection:?})");
        let mut server = TestServer::new(*protection, folder.path());
        run(&server);
        server.check_viewers(name);
        assert_eq!(*server.marks.lock().unwrap(), [""; 0], "{name}: a command was run");
    }
}

#[test]
fn documentation_lists_every_attack() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/security.md");
    let text = std::fs::read_to_string(path).expect("the document exists");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let documented: BTreeSet<&str> = rows.skip_while(|row| *row != "attempt").skip(2).collect();
    let connection_attacks = streams::ATTACKS.iter().chain(sockets::ATTACKS).map(|attack| attack.name);
    let pushes = include_str!("../../pushes.rs");
    let push_attacks = PUSH_ATTACKS.iter().map(|(name, test)| {
        assert!(pushes.contains(&format!("#[test]\nfn {test}()")), "tests/pushes.rs has no test for: {name}");
        *name
    });
    let tested: BTreeSet<&str> = requests::names().chain(connection_attacks).chain(push_attacks).collect();
    let undocumented: Vec<_> = tested.difference(&documented).collect();
    assert!(undocumented.is_empty(), "not in docs/security.md: {undocumented:#?}");
    let untested: Vec<_> = documented.difference(&tested).collect();
    assert!(untested.is_empty(), "in docs/security.md, but not tested: {untested:#?}");
}
