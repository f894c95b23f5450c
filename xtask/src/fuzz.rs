//! `cargo xtask fuzz`: runs the fuzz targets under libFuzzer, one after the other.

use std::fs;
use std::path::Path;

use crate::shell::{self, Result, cargo};
use crate::tools::Tool;
use crate::workspace;

/// Seconds for each target where nothing is said: more than an hour for all.
const SECONDS: u32 = 300;
/// What no input may exceed: seconds; MiB of the whole process; MiB at once. Inputs are up to 64 KiB long, as the longest seeds are.
const LIMITS: [&str; 4] = ["-timeout=10", "-rss_limit_mb=512", "-malloc_limit_mb=256", "-max_len=65536"];
/// A stable compiler instruments for coverage, and not for sanitizers. What is fuzzed is in safe Rust, so that those would find little.
/// In one unit, as cargo-fuzz would have it, a crate takes longer to build.
const BUILD: [&str; 7] =
    ["--sanitizer", "none", "--debug-assertions", "--codegen-units", "16", "--features", "libfuzzer"];

/// Runs the targets that are named, or all, each for `--seconds`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let mut seconds = SECONDS;
    let mut names = arguments;
    if let ["--seconds", number, rest @ ..] = arguments {
        seconds = number.parse().map_err(|_| format!("{number} is no number of seconds"))?;
        names = rest;
    }
    let folder = workspace::root().join("crates/fuzz");
    let all = targets(&folder)?;
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|target| target == *name)) {
        return Err(format!("there is no target {unknown}; there are {}", all.join(", ")));
    }
    Tool::CargoFuzz.ensure()?;
    let corpus = folder.join("corpus");
    shell::run(cargo().args(["run", "--package", "vramscope-fuzz", "--example", "seeds", "--"]).arg(&corpus))?;
    shell::run(cargo().args(["fuzz", "build", "--fuzz-dir", "crates/fuzz"]).args(BUILD))?;
    // One that finds something ends, and does not keep the others from being run.
    let of_interest = all.iter().filter(|target| names.is_empty() || names.contains(&target.as_str()));
    let found: Vec<&str> =
        of_interest.filter(|target| fuzz(target, seconds, &corpus).is_err()).map(String::as_str).collect();
    if found.is_empty() {
        Ok(())
    } else {
        Err(format!("found something: {}; see crates/fuzz/artifacts", found.join(", ")))
    }
}

fn fuzz(target: &str, seconds: u32, corpus: &Path) -> Result<()> {
    let mut fuzz = cargo();
    fuzz.args(["fuzz", "run", "--fuzz-dir", "crates/fuzz"])
        .args(BUILD)
        .arg(target)
        .arg(corpus.join(target))
        .arg("--")
        .args(LIMITS);
    fuzz.arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
    let words = corpus.join(format!("{target}.dict"));
    if words.is_file() {
        fuzz.arg(format!("-dict={}", words.display()));
    }
    shell::run(&mut fuzz)
}

/// The names of the targets.
fn targets(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.join("fuzz_targets");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| stem(&entry.path())).collect();
    names.sort();
    Ok(names)
}
