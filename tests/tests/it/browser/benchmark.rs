//! The browser benchmark runs without errors.

use std::process::Command;

#[test]
#[ignore = "needs Chromium; run by cargo xtask test"]
fn browser_benchmark_runs_briefly() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_bench_browser")).arg("--small").output().expect("the benchmark starts");
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let figures = String::from_utf8_lossy(&output.stdout);
    // `cargo xtask` builds the module that measures wasm alone; without it the benchmark skips
    // that part.
    let rows = if std::env::var_os("VRAMSCOPE_MEASURED").is_some() { 49 } else { 45 };
    assert_eq!(figures.matches(" p99 ").count(), rows, "one row for each measurement:\n{figures}");
}
