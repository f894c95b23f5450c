//! The Rust code of the README and of `docs/cudarc.md` is part of `examples/cudarc.rs`, and that
//! example runs.

#[path = "../../examples/cudarc.rs"]
mod example;
use crate::gpu;

/// Returns the lines of the last Rust block, trimmed and without empty lines and comments.
fn block(text: &str) -> Vec<&str> {
    let (_, code) = text.rsplit_once("```rust\n").expect("the text has Rust code");
    let (code, _) = code.split_once("```").expect("the code block ends");
    lines(code)
}

fn lines(code: &str) -> Vec<&str> {
    code.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//")).collect()
}

#[test]
fn documented_code_is_part_of_the_example() {
    let program = lines(include_str!("../../examples/cudarc.rs"));
    for (text, least) in [(include_str!("../../../README.md"), 4), (include_str!("../../../docs/cudarc.md"), 11)] {
        let shown = block(text);
        assert!(shown.len() >= least, "{shown:?}");
        assert!(program.windows(shown.len()).any(|part| part == shown), "the example lacks these lines: {shown:#?}");
    }
}

#[test]
fn example_runs_or_reports_a_missing_gpu() {
    let turn = gpu::turn();
    // Without a GPU the example reports that and succeeds.
    example::main().unwrap();
    drop(turn);
}
