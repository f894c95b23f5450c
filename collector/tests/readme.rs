//! The README's Rust code is part of `examples/cudarc.rs`, and that example runs.

#![allow(missing_docs)]

#[path = "../examples/cudarc.rs"]
mod example;
mod gpu;

const SECTION: &str = "## Use it in a cudarc program";

/// Returns the lines of the first Rust block after `heading`, trimmed and without empty lines.
fn block<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, section) = text.split_once(heading).expect("the README has the section");
    let (_, code) = section.split_once("```rust\n").expect("the section has Rust code");
    let (code, _) = code.split_once("```").expect("the code block ends");
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
    assert!(program.windows(shown.len()).any(|part| part == shown), "the example lacks these lines: {shown:#?}");
}

#[test]
fn example_runs_or_reports_a_missing_gpu() {
    let turn = gpu::turn();
    // Without a GPU the example reports that and succeeds.
    example::main().unwrap();
    drop(turn);
}
