//! Runs `vramscope verify` on every snapshot in a folder, with the limit that its ground truth
//! names, and prints the table of `docs/verify.md`. The folder defaults to `tests/data`.
#![forbid(unsafe_code)]

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use vramscope_tests::fixtures::{self, Fixture};
use vramscope_tests::{TABLE_HEAD, verify};

fn main() -> ExitCode {
    let folder = env::args_os().nth(1).map_or_else(|| fixtures::workspace_root().join("tests/data"), PathBuf::from);
    println!("{TABLE_HEAD}");
    let mut all_matched = true;
    for fixture in Fixture::all_in(&folder) {
        let (rows, matched) = verify(&fixture);
        rows.iter().for_each(|row| println!("{row}"));
        all_matched &= matched;
    }
    if all_matched { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
