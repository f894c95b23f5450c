//! `vramscope verify` matches every recording, and `docs/verify.md` has its results.

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
fn verified_recordings_match_the_table() {
    let docs =
        fs::read_to_string(fixtures::workspace_root().join("docs/verify.md")).expect("docs/verify.md is readable");
    fixtures::SMALL.iter().for_each(|name| check(&Fixture::small(name), &docs));
    fixtures::LARGE.iter().filter_map(|name| Fixture::large(name)).for_each(|fixture| check(&fixture, &docs));
}
