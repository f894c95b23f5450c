//! `cargo xtask test`: every test and check, fastest to fail first.

use std::process::ExitCode;
use std::thread;

use crate::assistant;
use crate::build::{self, Profile};
use crate::exports;
use crate::measure;
use crate::nats;
use crate::notebook;
use crate::package;
use crate::plan::Plan;
use crate::shell::{self, Result, cargo, command};
use crate::tools::{self, Tool};
use crate::wheel;
use crate::workspace;

/// Runs every step; a failure does not stop the later ones.
pub(crate) fn run() -> Result<ExitCode> {
    let mut plan = Plan::default();

    let rustfmt = plan.step("set up rustfmt", &[], || Tool::Rustfmt.ensure());
    let clippy = plan.step("set up clippy", &[], || Tool::Clippy.ensure());
    let wasm_target = plan.step("set up the wasm32 target", &[], || Tool::WasmTarget.ensure());
    let windows_target = plan.step("set up the Windows target", &[], || Tool::WindowsTarget.ensure());
    let mingw = plan.step("set up mingw", &[], || Tool::Mingw.ensure());
    let chromium = plan.step("set up Chromium", &[], || Tool::Chromium.ensure());
    let python = plan.step("set up Python", &[], || Tool::Python.ensure());
    let cargo_deny = plan.step("set up cargo-deny", &[], || Tool::CargoDeny.ensure());
    let wasm_pack = plan.step("set up wasm-pack", &[], || Tool::WasmPack.ensure());
    let test_runner = plan.step("set up wasm-bindgen-test-runner", &[], || Tool::TestRunner.ensure());

    plan.step("formatting", &[rustfmt], || shell::run(cargo().args(["fmt", "--all", "--check"])));
    plan.step("licences, bans and duplicates", &[cargo_deny], || {
        // Not advisories: their database is a git repository outside of the package registry.
        shell::run(cargo().args(["deny", "check", "licenses", "bans", "sources"]))
    });
    // The fuzz targets link libFuzzer, which is C++. The native tests run each for a moment.
    let has_cxx = shell::is_on_path("c++");
    plan.step("clippy, native", &[clippy], || {
        let fuzz_targets: &[&str] = if has_cxx { &["--features", "vramscope-fuzz/libfuzzer"] } else { &[] };
        let clippy = ["clippy", "--workspace", "--all-targets"];
        shell::run(cargo().args(clippy).args(fuzz_targets).args(["--", "--deny", "warnings"]))?;
        // Not with the tests, which no Python is there to link.
        let python_module = ["clippy", "--package", "vramscope-hook", "--features", "python", "--lib"];
        shell::run(cargo().args(python_module).args(["--", "--deny", "warnings"]))
    });
    if !has_cxx {
        plan.skip("clippy, fuzz targets", "no C++ compiler");
    }
    plan.step("clippy, wasm32", &[clippy, wasm_target], clippy_wasm);
    plan.step("features of the collector", &[clippy], check_features);
    plan.step("documentation", &[], check_documentation);
    plan.step("minimum supported Rust version", &[], check_minimum_rust_version);
    plan.step("Windows", &[windows_target, mingw], || {
        shell::run(cargo().args(["check", "--package", "vramscope", "--target", tools::WINDOWS_TARGET]))
    });
    // Built before the native tests, which embed it; a page that changes later rebuilds them.
    let page = plan.step("build the page", &[wasm_target], || build::page(Profile::Release));
    plan.step("tests, native", &[], || {
        let test = ["test", "--workspace", "--no-fail-fast"];
        // Many of these tests wait most of the time, for a network or a process.
        let threads = thread::available_parallelism().map_or(2, |count| 2 * count.get());
        shell::run(cargo().args(test).env("RUST_TEST_THREADS", threads.to_string()))
    });
    plan.step("the hook at a million events a second", &[], || {
        let test = ["test", "--workspace", "--lib", "--", "--ignored", "--nocapture"];
        shell::run(cargo().args(test).arg("recording_has_every_entry_of_each_layout_at_a_million_events_a_second"))
    });
    plan.step("the ring in every interleaving", &[], || {
        let test = ["test", "--package", "vramscope-collector", "--no-default-features", "--lib", "ring::"];
        // Its own folder: the flag changes every crate.
        let target = workspace::target_dir()?.join("loom");
        shell::run(cargo().args(test).env("RUSTFLAGS", "--cfg vramscope_loom").env("CARGO_TARGET_DIR", target))
    });
    plan.step("recordings through a real broker", &[python], || {
        // --workspace: with the same features as the other native tests nothing is compiled twice.
        let test = ["test", "--workspace", "--test", "fleet", "--", "--ignored"];
        shell::run(cargo().args(test).env(nats::SERVER_VARIABLE, nats::server()?))
    });
    if !workspace::root().join("../shared/snapshots").is_dir() {
        // Those tests report it themselves, but the output of a passing test is not shown.
        plan.skip("tests on the larger recordings", "no ../shared/snapshots");
    }
    if shell::output(command("nvidia-smi").arg("--list-gpus")).is_none_or(|gpus| gpus.is_empty()) {
        plan.skip("tests on a GPU", "no GPU; run `cargo xtask gpu` and tests/gpu/run.sh on a machine with one");
    }
    // Once each and unoptimized: shows that they still run, not how fast.
    plan.step("benchmarks, run briefly", &[], || shell::run(cargo().args(["test", "--workspace", "--bench", "*"])));
    plan.step("browser tests of the viewer", &[wasm_target, chromium, wasm_pack, test_runner], || {
        // `no-install`: the steps above installed what wasm-pack would download.
        let test = ["test", "--headless", "--chrome", "--mode", "no-install", "viewer"];
        shell::run(command("wasm-pack").args(test).env("WASM_BINDGEN_TEST_TIMEOUT", "120"))
    });

    let binary = plan.step("build for release", &[page], || build::binary_with_built_page(Profile::Release).map(drop));
    plan.step("packages", &[binary], package::check);
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        let package = plan.step("the Python package", &[page, python], wheel::check);
        plan.step("the notebook", &[package, chromium], notebook::check);
    } else {
        plan.skip("the Python package and the notebook", "the package is built for Linux on x86-64");
    }
    plan.step("the binary in the browser", &[binary, chromium, python], end_to_end);
    plan.step("exports read by other tools", &[binary, python], exports::check);
    plan.step("the server for assistants, asked by the official client", &[binary, python], assistant::check);
    Ok(plan.finish())
}

/// Runs clippy on the crates that are compiled to WebAssembly.
fn clippy_wasm() -> Result<()> {
    let clippy = |arguments: &[&str]| {
        let mut clippy = cargo();
        clippy.args(["clippy", "--target", tools::WASM_TARGET]).args(arguments).args(["--", "--deny", "warnings"]);
        shell::run(&mut clippy)
    };
    clippy(&[
        "--package",
        "vramscope-trace",
        "--package",
        "vramscope-pool",
        "--package",
        "vramscope-formats",
        "--package",
        "vramscope-insight",
        "--package",
        "vramscope-importer",
        "--package",
        "vramscope-analyzer",
        "--lib",
    ])?;
    clippy(&["--package", "vramscope-viewer", "--lib", "--tests", "--examples"])
}

/// Documents the workspace, then two crates with the features that docs.rs documents. In the
/// workspace, features that other crates need hide a link that is broken without them.
fn check_documentation() -> Result<()> {
    let runs: [&[&str]; 3] = [
        &["--workspace"],
        &["--package", "vramscope-formats", "--all-features"],
        &["--package", "vramscope-collector"],
    ];
    runs.into_iter().try_for_each(|packages| {
        shell::run(cargo().args(["doc", "--no-deps"]).args(packages).env("RUSTDOCFLAGS", "--deny warnings"))
    })
}

/// Checks the workspace with `rust-version`, unless the toolchain that runs the other steps is of
/// that version.
fn check_minimum_rust_version() -> Result<()> {
    let minimum = env!("CARGO_PKG_RUST_VERSION");
    let running = shell::output(command("rustc").arg("--version")).ok_or("`rustc --version` failed")?;
    let running = running.split_whitespace().nth(1).unwrap_or_default();
    if is_release_of(running, minimum) {
        eprintln!("this toolchain, {running}, is the minimum supported Rust version");
        return Ok(());
    }
    // `--install`: rustup downloads the toolchain if it is missing.
    let check = ["run", "--install", minimum, "cargo", "check", "--workspace"];
    shell::run(command("rustup").args(check))
}

/// Returns true if `running`, such as `1.95.1`, is a stable release of the version `minimum`, such
/// as `1.95`.
fn is_release_of(running: &str, minimum: &str) -> bool {
    let patch = running.strip_prefix(minimum);
    patch.is_some_and(|patch| patch.is_empty() || patch.starts_with('.')) && !running.contains('-')
}

/// The collector's features, each alone. Features are additive, so each must compile by itself.
const COLLECTOR_FEATURES: [&str; 11] = [
    "",
    "cuda-13000",
    "follow",
    "half",
    "metrics",
    "native-stacks",
    "nvml",
    "push",
    "server",
    "tls,push",
    "tracing-layer",
];

/// Checks each feature of the collector alone, and that a recorder without any stays small.
fn check_features() -> Result<()> {
    for features in COLLECTOR_FEATURES {
        let clippy = ["clippy", "--package", "vramscope-collector", "--no-default-features", "--features", features];
        shell::run(cargo().args(clippy).args(["--", "--deny", "warnings"]))?;
    }
    let tree = ["tree", "--package", "vramscope-collector", "--no-default-features", "--edges", "normal"];
    let tree = shell::output(cargo().args(tree).args(["--prefix", "none"])).ok_or("`cargo tree` failed")?;
    let mut crates: Vec<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    crates.sort_unstable();
    crates.dedup();
    eprintln!("a recorder without features: {} crates", crates.len());
    let unwanted = ["axum", "hyper", "rustls", "tokio"].into_iter().find(|name| crates.contains(name));
    match unwanted {
        Some(name) => Err(format!("vramscope-collector without features depends on {name}")),
        None if crates.len() > MAX_RECORDER_CRATES => {
            Err(format!("vramscope-collector without features has {} crates: {}", crates.len(), crates.join(" ")))
        }
        None => Ok(()),
    }
}

/// Most crates that a program may need for recording alone.
const MAX_RECORDER_CRATES: usize = 40;

/// Runs the tests that need a browser and the release binary; `cargo test` ignores them elsewhere.
fn end_to_end() -> Result<()> {
    let variables = [
        (measure::BINARY_VARIABLE, build::binary_path(Profile::Release)?),
        // Unoptimized, as the steps before built most of it; these tests do not measure speed.
        (measure::LOAD_VARIABLE, measure::load_generator(Profile::Dev)?),
        (measure::WASM_BENCHMARK_VARIABLE, measure::wasm_benchmark(Profile::Dev)?),
        (measure::AXE_VARIABLE, exports::axe_script()?),
    ];
    // --workspace: with the same features as the other native tests nothing is compiled twice.
    let test = ["test", "--workspace", "--test", "browser", "--", "--ignored"];
    let run = |arguments: &[&str]| shell::run(cargo().args(test).args(arguments).envs(variables.clone()));
    // Those that measure a running program have the processors to themselves.
    run(&["--skip", "live::", "--test-threads", "2"])?;
    run(&["live::", "--test-threads", "1"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_of_a_version_is_recognized() {
        let cases = [
            ("1.95.0", "1.95", true),
            ("1.95.1", "1.95", true),
            ("1.95.0", "1.95.0", true),
            ("1.96.0", "1.95", false),
            ("1.950.0", "1.95", false),
            ("1.95.0-nightly", "1.95", false),
            ("", "1.95", false),
        ];
        for (running, minimum, expected) in cases {
            assert_eq!(is_release_of(running, minimum), expected, "{running} and {minimum}");
        }
    }
}
