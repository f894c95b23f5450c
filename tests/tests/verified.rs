//! The real binary decides every recording as PyTorch did, and the table that says so is true.

use std::fs;

use vramscope_tests::fixtures::{self, Fixture};
use vramscope_tests::verify;

fn check(fixture: &Fixture, docs: &str) {
    let (rows, matched) = verify(fixture);
    assert!(matched, "{rows:?}");
    for row in rows {
        assert!(docs.contains(&row), "docs/verify.md lacks {row}");
    }
}

#[test]
fn the_table_of_verified_recordings_is_true() {
    let docs = fs::read_to_string(fixtures::workspace_root().join("docs/verify.md")).expect("the page is there");
    fixtures::SMALL.iter().for_each(|name| check(&Fixture::small(name), &docs));
    fixtures::LARGE.iter().filter_map(|name| Fixture::large(name)).for_each(|fixture| check(&fixture, &docs));
}
