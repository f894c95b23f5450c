//! The browser benchmark still runs.

use std::process::Command;

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn the_browser_benchmark_runs_small() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_bench_browser")).arg("--small").output().expect("the benchmark starts");
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let figures = String::from_utf8_lossy(&output.stdout);
    // What measures recordings in wasm is built by `cargo xtask`, and this says that it was skipped where it was not.
    let rows = if std::env::var_os("VRAMSCOPE_MEASURED").is_some() { 13 } else { 9 };
    assert_eq!(figures.matches(" p99 ").count(), rows, "each thing that is measured has its figures:\n{figures}");
}
