//! `cargo xtask fuzz`: runs the fuzz targets under libFuzzer, one after another.

use std::fs;
use std::path::Path;

use crate::shell::{self, Result, cargo};
use crate::tools::Tool;
use crate::workspace;

/// Default time for each fuzz target, in seconds: more than an hour for all targets.
const SECONDS: u32 = 300;
/// libFuzzer's limits for one input: seconds, MiB of the process, MiB of one allocation, and length
/// in bytes (64 KiB, the length of the longest seed).
const LIMITS: [&str; 4] = ["-timeout=10", "-rss_limit_mb=512", "-malloc_limit_mb=256", "-max_len=65536"];
/// Options of `cargo fuzz` for a build by a stable compiler. It supports coverage but no
/// sanitizers, which find little in safe Rust. cargo-fuzz's default of one codegen unit would build
/// more slowly.
const BUILD: [&str; 7] =
    ["--sanitizer", "none", "--debug-assertions", "--codegen-units", "16", "--features", "libfuzzer"];

/// Runs the named fuzz targets, or all targets if none is named, each for `--seconds`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let mut seconds = SECONDS;
    let mut names = arguments;
    if let ["--seconds", number, rest @ ..] = arguments {
        seconds = number.parse().map_err(|_| format!("{number} is not a number of seconds"))?;
        names = rest;
    }
    let folder = workspace::root().join("crates/fuzz");
    let all = targets(&folder)?;
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|target| target == *name)) {
        return Err(format!("unknown target {unknown}; the targets are {}", all.join(", ")));
    }
    Tool::CargoFuzz.ensure()?;
    let corpus = folder.join("corpus");
    shell::run(cargo().args(["run", "--package", "vramscope-fuzz", "--example", "seeds", "--"]).arg(&corpus))?;
    shell::run(cargo().args(["fuzz", "build", "--fuzz-dir", "crates/fuzz"]).args(BUILD))?;
    // A target that fails does not stop the others.
    let selected = all.iter().filter(|target| names.is_empty() || names.contains(&target.as_str()));
    let failed: Vec<&str> =
        selected.filter(|target| fuzz(target, seconds, &corpus).is_err()).map(String::as_str).collect();
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}; see crates/fuzz/artifacts", failed.join(", "))) }
}

/// Runs a fuzz target for `seconds`, with its inputs and its dictionary below `corpus`.
fn fuzz(target: &str, seconds: u32, corpus: &Path) -> Result<()> {
    let mut fuzz = cargo();
    fuzz.args(["fuzz", "run", "--fuzz-dir", "crates/fuzz"])
        .args(BUILD)
        .arg(target)
        .arg(corpus.join(target))
        .arg("--")
        .args(LIMITS);
    fuzz.arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
    let dictionary = corpus.join(format!("{target}.dict"));
    if dictionary.is_file() {
        fuzz.arg(format!("-dict={}", dictionary.display()));
    }
    shell::run(&mut fuzz)
}

/// Returns the names of all fuzz targets in the fuzz crate's folder, sorted.
fn targets(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.join("fuzz_targets");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| stem(&entry.path())).collect();
    names.sort();
    Ok(names)
}
