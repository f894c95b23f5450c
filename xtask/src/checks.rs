//! `cargo xtask test`: everything there is to test, in the order in which a mistake shows soonest.

use std::process::ExitCode;

use crate::build::{self, Profile};
use crate::exports;
use crate::plan::Plan;
use crate::shell::{self, Result, cargo, command};
use crate::tools::{self, Tool};
use crate::workspace;

/// Runs all of it. A step that fails does not keep the others from being run.
pub(crate) fn run() -> Result<ExitCode> {
    let mut plan = Plan::default();

    let rustfmt = plan.step("set up rustfmt", &[], || Tool::Rustfmt.ensure());
    let clippy = plan.step("set up clippy", &[], || Tool::Clippy.ensure());
    let wasm_target = plan.step("set up the wasm32 target", &[], || Tool::WasmTarget.ensure());
    let chromium = plan.step("set up Chromium", &[], || Tool::Chromium.ensure());
    let python = plan.step("set up Python", &[], || Tool::Python.ensure());
    let wasm_pack = plan.step("set up wasm-pack", &[], || Tool::WasmPack.ensure());
    let test_runner = plan.step("set up wasm-bindgen-test-runner", &[], || Tool::TestRunner.ensure());

    plan.step("formatting", &[rustfmt], || shell::run(cargo().args(["fmt", "--all", "--check"])));
    plan.step("clippy, native", &[clippy], || {
        shell::run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"]))
    });
    if shell::is_on_path("c++") {
        // Their programs link a library in C++. What they run is in the native tests, for a moment each.
        let fuzz_targets = ["clippy", "--package", "vramscope-fuzz", "--features", "libfuzzer", "--bins"];
        let clippy_fuzz = || shell::run(cargo().args(fuzz_targets).args(["--", "--deny", "warnings"]));
        plan.step("clippy, fuzz targets", &[clippy], clippy_fuzz);
    } else {
        plan.skip("clippy, fuzz targets", "there is no C++ compiler");
    }
    plan.step("clippy, wasm32", &[clippy, wasm_target], clippy_wasm);
    plan.step("tests, native", &[], || shell::run(cargo().args(["test", "--workspace", "--no-fail-fast"])));
    if !workspace::root().join("../shared/snapshots").is_dir() {
        // The tests that want them say so too, but a test that passes is not heard.
        plan.skip("tests on the larger recordings", "../shared/snapshots is not there");
    }
    if shell::output(command("nvidia-smi").arg("--list-gpus")).is_none_or(|gpus| gpus.is_empty()) {
        plan.skip(
            "tests on a GPU",
            "there is none; `cargo xtask gpu` and tests/gpu/run.sh test on a machine that has one",
        );
    }
    plan.step("documentation", &[], || {
        shell::run(cargo().args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "--deny warnings"))
    });
    // Once each and unoptimized: this shows that they still run, not how fast.
    plan.step("benchmarks, run small", &[], || shell::run(cargo().args(["test", "--workspace", "--bench", "*"])));
    plan.step("browser tests of the viewer", &[wasm_target, chromium, wasm_pack, test_runner], || {
        // `no-install`: what wasm-pack would download by itself is what was set up above.
        let test = ["test", "--headless", "--chrome", "--mode", "no-install", "viewer"];
        shell::run(command("wasm-pack").args(test).env("WASM_BINDGEN_TEST_TIMEOUT", "120"))
    });

    let binary = plan.step("build for release", &[wasm_target], || build::everything(Profile::Release).map(drop));
    plan.step("the binary in the browser", &[binary, chromium], end_to_end);
    plan.step("the exports in their own tools", &[binary, python], exports::check);
    Ok(plan.finish())
}

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
        "--lib",
    ])?;
    clippy(&["--package", "vramscope-viewer", "--lib", "--tests", "--examples"])
}

/// The tests that are ignored elsewhere because they need a browser and the binary built for release.
fn end_to_end() -> Result<()> {
    // --workspace: the same features as in the other native tests, so that nothing is compiled twice.
    let test = ["test", "--workspace", "--test", "browser*", "--", "--ignored", "--test-threads", "1"];
    let binary = build::binary_path(Profile::Release)?;
    let variables = [
        (build::BINARY_VARIABLE, binary),
        (build::LOAD_VARIABLE, build::load()?),
        (build::MEASURED_VARIABLE, build::measured()?),
    ];
    shell::run(cargo().args(test).envs(variables))
}
