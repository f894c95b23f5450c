//! The program that the README shows: it runs, and the README shows no other.

#![allow(missing_docs)]

#[path = "../examples/cudarc.rs"]
mod example;
mod gpu;

const SECTION: &str = "## Use it in a cudarc program";

/// The lines of the first block of Rust behind `heading`, without their indentation, and none that is empty.
fn block<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, section) = text.split_once(heading).expect("the section is there");
    let (_, code) = section.split_once("```rust\n").expect("code is shown in it");
    let (code, _) = code.split_once("```").expect("the code ends");
    lines(code)
}

fn lines(code: &str) -> Vec<&str> {
    code.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn readme_snippet_is_part_of_the_example() {
    let shown = block(include_str!("../../README.md"), SECTION);
    let program = lines(include_str!("../examples/cudarc.rs"));
    assert!(shown.len() > 10, "{shown:?}");
    assert!(program.windows(shown.len()).any(|part| part == shown), "the example has not these lines: {shown:#?}");
}

#[test]
fn example_runs_or_reports_a_missing_gpu() {
    let turn = gpu::turn();
    // Without a GPU this ends well, too.
    example::main().unwrap();
    drop(turn);
}
