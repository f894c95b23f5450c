//! Tests with a stand-in for PyTorch (`tests/standin`), without a GPU.
//!
//! A process can attach only one tracker, so each scenario runs in a child process: this test
//! binary again, with the environment variables below.

pub(crate) mod allocations;
mod child;
mod comparison;
mod standin;

use std::env;
use std::path::Path;
use std::process::Command;

use standin::Build;
use tempfile::TempDir;

use crate::torch::layouts::LAYOUTS;

/// Environment variable with the name of the child's scenario.
const SCENARIO: &str = "VRAMSCOPE_TEST_SCENARIO";
/// Environment variable with the folder of the child's library and files.
const FOLDER: &str = "VRAMSCOPE_TEST_FOLDER";
/// Environment variable with the minor version of PyTorch that the child attaches to.
const MINOR: &str = "VRAMSCOPE_TEST_MINOR";

/// Runs a scenario in a child process and returns its line about what it measured. The library of
/// the stand-in, if any, is in `folder`.
#[track_caller]
fn run_child(scenario: &str, folder: &Path, minor: u32) -> String {
    let output = Command::new(env::current_exe().expect("this binary has a path"))
        .args(["--exact", "tests::child::run_scenario", "--ignored", "--nocapture"])
        .envs([(SCENARIO, scenario), (MINOR, &minor.to_string())])
        .env(FOLDER, folder)
        .output()
        .expect("this binary starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let result = text.lines().find_map(|line| line.split_once("result: "));
    match result {
        Some((_, result)) if output.status.success() => result.to_owned(),
        _ => panic!(
            "{scenario} with PyTorch 2.{minor}: {}\n{text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ),
    }
}

/// Builds the stand-in, runs a scenario with the same version, and prints its result.
#[track_caller]
fn check(scenario: &str, minor: u32) {
    let folder = TempDir::new().expect("a temporary folder");
    Build::of(minor).library(folder.path());
    println!("{scenario}, PyTorch 2.{minor}: {}", run_child(scenario, folder.path(), minor));
}

#[test]
fn recording_has_every_entry_of_each_layout() {
    LAYOUTS.iter().for_each(|layout| check("record", layout.minor));
}

/// Number of attempts at the full rate, for each layout. If the follower gets no processor for a
/// quarter of a second, the ring is full and events are lost, as intended: the program never waits
/// for the recorder. This can happen when eight threads and the follower share two processors with
/// other work of the machine.
const TRIES: usize = 3;

#[test]
#[ignore = "needs the processors for itself: a step of its own in `cargo xtask test`"]
fn recording_has_every_entry_of_each_layout_at_a_million_events_a_second() {
    for layout in LAYOUTS {
        let tried = |_| std::panic::catch_unwind(|| check("storm", layout.minor)).is_ok();
        let lost = format!("PyTorch 2.{}: events were lost or differ in each of {TRIES} runs, see above", layout.minor);
        assert!((0..TRIES).any(tried), "{lost}");
    }
}

#[test]
fn recording_with_cpp_stacks_has_every_entry() {
    check("cpp stacks", 11);
}

#[test]
fn late_session_starts_with_the_current_state() {
    check("late", 11);
}

#[test]
fn overflow_becomes_a_gap_with_the_state_after_it() {
    check("overflow", 11);
}

#[test]
fn second_session_records_again() {
    check("twice", 11);
}

#[test]
fn unknown_allocator_is_refused_and_the_program_continues() {
    let check = |build: Option<Build>, minor: u32, expected: &str| {
        let folder = TempDir::new().expect("a temporary folder");
        if let Some(build) = build {
            build.library(folder.path());
        }
        let error = run_child("refused", folder.path(), minor);
        assert!(error.contains(expected), "2.{minor}: {error:?} instead of {expected:?}");
    };
    let slot = "its table of virtual functions has another function there";
    let symbol = "its symbol table lacks the function for trackers";
    check(Some(Build::of(9)), 8, slot);
    check(Some(Build::of(10)), 9, slot);
    check(Some(Build::of(13)), 14, slot);
    check(Some(Build::of(14)), 13, slot);
    check(Some(Build::of(11)), 10, symbol);
    check(Some(Build::of(10)), 11, symbol);
    check(Some(Build::of(11).with("-DWRONG_SLOT")), 11, slot);
    check(Some(Build::of(11).with("-DOTHER_ALLOCATOR")), 11, "does not use its own caching allocator");
    check(Some(Build::of(11).with("-s")), 11, "its symbol table lacks the allocator's class");
    check(Some(Build::of(11).with("-DNEVER_INITIALIZED")), 11, "PyTorch has not initialized CUDA yet");
    check(Some(Build::of(11)), 5, "PyTorch 2.5 has an unknown layout");
    check(None, 11, "libc10_cuda.so is not loaded");
}

#[test]
fn standin_has_no_data_race() {
    let folder = TempDir::new().expect("a temporary folder");
    let Some(program) = Build::of(11).thread_sanitizer(folder.path()) else {
        println!("skipped: g++ cannot link with -fsanitize=thread");
        return;
    };
    let output = Command::new(program).output().expect("the program starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {text}", output.status);
    print!("{text}");
}
