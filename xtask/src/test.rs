//! `cargo xtask test`: the tests and checks that every change must pass, the fastest to fail first.
//!
//! With `--full`, it runs every test and check; `CONTRIBUTING.md` has the table of both tiers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use crate::assistant;
use crate::build::{self, Profile};
use crate::executables::{self, Executable, Purpose};
use crate::exports;
use crate::lint::{self, Warnings};
use crate::measure;
use crate::nats;
use crate::notebook;
use crate::package;
use crate::passed::{Passed, Reads, files_below};
use crate::plan::{Kind, Plan};
use crate::python_env;
use crate::shell::{self, Result, cargo, command};
use crate::tiers::Tiers;
use crate::tools::{self, Tool};
use crate::wheel;
use crate::workspace;

/// The package with the tests that span crates.
const TESTS_PACKAGE: &str = "vramscope-tests";
/// Feature with the module of the Python package.
const PYTHON_FEATURE: &str = "vramscope-hook/python";
/// Feature with SQL over archives. The command's own feature stays off, so that the tested command
/// is the one that users install.
const QUERY_FEATURE: &str = "vramscope-query/datafusion";
/// Feature with SQL in the command.
const COMMAND_QUERY_FEATURE: &str = "vramscope/query";
/// Feature of the fuzz targets, which link libFuzzer.
const FUZZ_FEATURE: &str = "vramscope-fuzz/libfuzzer";
/// Settings of cargo's profile for the tested page and the viewer's tests for WebAssembly. They
/// omit line tables, which no browser shows and which would make the files larger and slower to
/// prepare.
const WASM_PROFILE: [(&str, &str); 1] = [("CARGO_PROFILE_DEV_DEBUG", "0")];
/// True where the Python package can be built.
const HAS_WHEEL: bool = cfg!(all(target_os = "linux", target_arch = "x86_64"));

/// For each step of the full tier, the files that it checks. After a change of one of these files,
/// the short tier runs the step, too.
mod about {
    pub(super) const ARCHIVE: &[&str] = &["crates/fleet/src/archive/", "tests/archive/"];
    pub(super) const BENCHMARKS: &[&str] = &["/benches/"];
    pub(super) const COLLECTOR: &[&str] = &["collector/"];
    pub(super) const DEPENDENCIES: &[&str] = &["Cargo.lock", "deny.toml"];
    pub(super) const FLEET: &[&str] = &["crates/fleet/"];
    pub(super) const FUZZ: &[&str] = &["crates/fuzz/"];
    pub(super) const HOOK: &[&str] = &["crates/hook/"];
    pub(super) const NOTEBOOK: &[&str] = &["python/vramscope/_notebook", "python/tests/test_notebook.py"];
    pub(super) const PACKAGES: &[&str] = &["/Cargo.toml"];
    pub(super) const PAGE: &[&str] = &["www/"];
    pub(super) const PROGRAMS: &[&str] = &["crates/cli/", "xtask/"];
    pub(super) const QUERY: &[&str] = &["crates/query/"];
    pub(super) const RUST_VERSION: &[&str] = &["Cargo.toml", "rust-toolchain.toml"];
    pub(super) const WHEEL: &[&str] = &["python/pyproject.toml"];
    pub(super) const XTASK: &[&str] = &["xtask/"];
}

/// Runs the steps of a tier; a failure does not stop the others.
///
/// Of the steps that can start, the first of its kind starts first. Therefore the native tests and
/// the page, which take long and which many steps need, come early. Clippy has no step of its own:
/// it lints code while these steps compile it.
pub(crate) fn run(tiers: &Tiers) -> Result<ExitCode> {
    // Set by the step that builds the native tests.
    let native_executables = &OnceLock::new();
    let viewer_executables = &OnceLock::<Vec<Executable>>::new();
    let warnings = &Warnings::default();
    let executables = || native_executables.get().map_or(&[][..], Vec::as_slice);
    let build = &NativeBuild::of(tiers);
    let has_wheel = HAS_WHEEL && tiers.run_step_about(&[about::WHEEL, about::NOTEBOOK].concat());
    let passed = &if *tiers == Tiers::Full { Passed::none() } else { Passed::load()? };
    let mut plan = Plan::new(tiers);

    let mut set_up = |name, tool: Tool| plan.step(name, Kind::Install, &[], move || set_up(tool));
    let clippy = set_up("set up clippy", Tool::Clippy);
    let wasm_target = set_up("set up the wasm32 target", Tool::WasmTarget);
    let python = set_up("set up Python", Tool::Python);
    let rustfmt = set_up("set up rustfmt", Tool::Rustfmt);
    let chromium = set_up("set up Chromium", Tool::Chromium);
    let wasm_pack = set_up("set up wasm-pack", Tool::WasmPack);
    let test_runner = set_up("set up wasm-bindgen-test-runner", Tool::TestRunner);
    let mut set_up_for =
        |name, about, tool: Tool| plan.full_step(name, about, Kind::Install, &[], move || tool.ensure());
    let windows_target = set_up_for("set up the Windows target", about::PROGRAMS, Tool::WindowsTarget);
    let mingw = set_up_for("set up mingw", about::PROGRAMS, Tool::Mingw);
    let cargo_deny = set_up_for("set up cargo-deny", about::DEPENDENCIES, Tool::CargoDeny);

    plan.step("formatting", Kind::Test, &[rustfmt], || shell::run(cargo().args(["fmt", "--all", "--check"])));
    plan.full_step("licences, bans and duplicates", about::DEPENDENCIES, Kind::Test, &[cargo_deny], || {
        // Leaves out advisories: their database is a git repository outside the package registry.
        shell::run(cargo().args(["deny", "check", "licenses", "bans", "sources"]))
    });
    // The native tests read the page when they run.
    let native_tests = plan.step("build and lint the native tests", Kind::CompileDebug, &[clippy], move || {
        native_executables.set(build.run(warnings)?).map_err(|_| "built twice".to_owned())
    });
    let page = if tiers.run_step_about(about::PAGE) {
        plan.step("build the page for release", Kind::CompileOther, &[wasm_target], || build::page(Profile::Release))
    } else {
        plan.step("build the page", Kind::CompileDebug, &[clippy, wasm_target], || build_test_page(warnings))
    };
    // The documentation reuses the native tests' build and compiles nothing more.
    plan.step("documentation and its examples", Kind::CompileDebug, &[native_tests], move || {
        let libraries = executables().iter().filter(|executable| executable.kind == executables::LIBRARY);
        passed.run_or_print("documentation", Reads::Data, libraries.map(|library| library.path.clone()), || {
            lint::test_documentation(&build.features().each_ref().map(String::as_str))
        })
    });
    let viewer_tests_need = [clippy, wasm_target];
    let viewer_tests = plan.step("build and lint for wasm32", Kind::CompileDebug, &viewer_tests_need, move || {
        viewer_executables.set(build_viewer_tests(warnings)?).map_err(|_| "built twice".to_owned())
    });
    plan.step("warnings of the compiler and clippy", Kind::Test, &[native_tests, viewer_tests], || warnings.check());
    // These steps come after the page, which other steps need.
    let after_page = [clippy, page];
    plan.full_step("clippy, xtask", about::XTASK, Kind::CompileDebug, &after_page, || {
        // The native tests' build lints xtask with its tests. Without its tests, functions that
        // only they use are found, too.
        shell::run(cargo().args(["clippy", "--profile", "quick", "--package", "xtask", "--", "--deny", "warnings"]))
    });
    plan.full_step("features of the collector", about::COLLECTOR, Kind::CompileDebug, &after_page, check_features);
    plan.full_step("documentation of programs alone", about::PROGRAMS, Kind::CompileDebug, &after_page, document_alone);
    plan.full_step(
        "minimum supported Rust version",
        about::RUST_VERSION,
        Kind::CompileDebug,
        &after_page,
        check_minimum_rust_version,
    );
    // The command embeds the page, whose files must not change meanwhile.
    let windows_needs = [windows_target, mingw, page];
    plan.full_step("Windows", about::PROGRAMS, Kind::CompileDebug, &windows_needs, || {
        shell::run(cargo().args(["check", "--package", "vramscope", "--target", tools::WINDOWS_TARGET]))
    });
    plan.full_step("packages", about::PACKAGES, Kind::CompileDebug, &[page], package::check);
    plan.step("tests, native", Kind::Test, &[native_tests, page], move || {
        executables::run_all(executables(), Purpose::Tests, |executable, run| {
            let (reads, on) = dependencies(executable, executables());
            passed.run(&executable.label(), reads, on, run)
        })
    });
    // Runs each benchmark once and unoptimized, to check that it works.
    plan.full_step("benchmarks, run briefly", about::BENCHMARKS, Kind::Test, &[native_tests], move || {
        executables::run_all(executables(), Purpose::Benchmarks, |_, run| run().map(|()| true))
    });
    plan.step("recordings through a real broker", Kind::WaitingTest, &[native_tests, python, page], move || {
        let test = executables::find(executables(), TESTS_PACKAGE, "test", "it")?;
        passed.run_or_print("broker", Reads::Data, dependencies(test, executables()).1, || {
            let mut test = test.command();
            test.args(["--ignored", "fleet::", "--skip", "browser::"]);
            shell::run(test.env(nats::SERVER_VARIABLE, nats::server()?))
        })
    });
    let archive_needs = [native_tests, python];
    plan.full_step("the archive on S3", about::ARCHIVE, Kind::WaitingTest, &archive_needs, move || {
        archive_on_s3(executables())
    });
    if !workspace::root().join("../shared/snapshots").is_dir() {
        // Reports that these tests skip themselves, because output of passing tests is not shown.
        plan.skip("tests on the larger recordings", "no ../shared/snapshots");
    }
    if shell::output(command("nvidia-smi").arg("--list-gpus")).is_none_or(|gpus| gpus.is_empty()) {
        plan.skip("tests on a GPU", "no GPU; run `cargo xtask gpu` and tests/gpu/run.sh on a machine with one");
    }
    let viewer_needs = [viewer_tests, chromium, wasm_pack, test_runner];
    plan.step("browser tests of the viewer", Kind::WaitingTest, &viewer_needs, move || {
        let programs = viewer_executables.get().into_iter().flatten().map(|program| program.path.clone());
        passed.run_or_print("browser tests of the viewer", Reads::Data, programs, || {
            // `no-install`: the steps above have installed the tools that wasm-pack would download.
            let test = ["test", "--headless", "--chrome", "--mode", "no-install", "viewer"];
            let mut test_in_browser = command("wasm-pack");
            // Uses clippy's build, so that nothing is compiled again.
            lint::set_clippy(&mut test_in_browser)?;
            test_in_browser.args(test).envs(WASM_PROFILE).env("WASM_BINDGEN_TEST_TIMEOUT", "120");
            shell::run(&mut test_in_browser)
        })
    });
    let browser_needs = [native_tests, viewer_tests, page, chromium, python];
    plan.step("the binary in the browser", Kind::WaitingTest, &browser_needs, move || {
        let test = executables::find(executables(), TESTS_PACKAGE, "test", "it")?;
        let (_, mut on) = dependencies(test, executables());
        on.extend(files_below(&measure::wasm_benchmark_folder()?));
        passed.run_or_print("the binary in the browser", Reads::Data, on, || {
            let other_tests = ["browser::", "--skip", "live::", "--skip", "golden::", "--test-threads", "2"];
            let others = end_to_end(executables(), &other_tests, tools::headless_shell());
            // The headless shell draws text differently.
            let pictures = ["browser::golden::", "--skip", "::full::", "--test-threads", "2"];
            others.and(end_to_end(executables(), &pictures, None))
        })
    });
    let all_pictures = "pictures of the page in all colors and sizes";
    plan.full_step(all_pictures, about::PAGE, Kind::WaitingTest, &browser_needs, move || {
        end_to_end(executables(), &["browser::golden::full::", "--test-threads", "2"], None)
    });
    if has_wheel {
        // Cargo also locks `target/debug` for the wheel, whose build scripts are there.
        let wheel_needs = [native_tests, python];
        let wheel = plan.step("build the Python package", Kind::CompileDebug, &wheel_needs, wheel::build_for_tests);
        let package = plan.step("the Python package", Kind::Test, &[wheel], wheel::check);
        plan.step("the notebook", Kind::WaitingTest, &[package, chromium], notebook::check);
    } else if HAS_WHEEL {
        plan.step("the Python package, not installed", Kind::Test, &[native_tests, python, page], move || {
            let on = dependencies(command_executable(executables())?, executables()).1;
            let library = wheel::test_library()?;
            passed.run_or_print("Python", Reads::Data, on.into_iter().chain([library]), wheel::check_without_wheel)
        });
        plan.skip_full("the Python package as a wheel, and in a notebook");
    } else {
        plan.skip("the Python package and the notebook", "the package is built for Linux on x86-64");
    }
    let mut command_step = |name, label: &'static str, check: fn(&Path) -> Result<()>| {
        plan.step(name, Kind::Test, &[native_tests, python, page], move || {
            let (_, on) = dependencies(command_executable(executables())?, executables());
            passed.run_or_print(label, Reads::Data, on, || check(&build::binary_path(Profile::Dev)?))
        })
    };
    command_step("exports read by other tools", "exports", exports::check);
    command_step("the server for assistants, asked by the official client", "assistant", assistant::check);

    let at_high_rate = "the hook at a million events a second";
    plan.full_step(at_high_rate, about::HOOK, Kind::Measure, &[native_tests], move || {
        let mut tests = executables::find(executables(), "vramscope-hook", "lib", "unit")?.command();
        tests.args(["--ignored", "--nocapture"]);
        shell::run(tests.arg("recording_has_every_entry_of_each_layout_at_a_million_events_a_second"))
    });
    plan.full_step("running programs in the browser", about::COLLECTOR, Kind::Measure, &browser_needs, move || {
        end_to_end(executables(), &["browser::live::", "--test-threads", "1"], None)
    });
    plan.full_step("many machines, simulated briefly", about::FLEET, Kind::Measure, &browser_needs, move || {
        simulate_fleet(executables())
    });
    plan.run(&workspace::target_dir()?.join("xtask-test"))
}

/// Packages whose tests use the page, which their executables read when they run.
const USE_THE_PAGE: [&str; 7] = [
    "vramscope",
    "vramscope-collector",
    "vramscope-demo",
    "vramscope-hook",
    "vramscope-page",
    "vramscope-pluggable",
    TESTS_PACKAGE,
];

/// Returns the command's executable.
fn command_executable(all: &[Executable]) -> Result<&Executable> {
    executables::find(all, "vramscope", "bin", "vramscope")
}

/// Returns the dependencies of an executable's result: the files of the repository that it reads,
/// and the paths of the programs that it starts and of the page.
fn dependencies(of: &Executable, all: &[Executable]) -> (Reads, Vec<PathBuf>) {
    let is_of_tests = of.package == TESTS_PACKAGE;
    let is_started = |one: &&Executable| !one.is_test && (is_of_tests || one.package == of.package);
    let mut on = vec![of.path.clone()];
    on.extend(all.iter().filter(is_started).map(|program| program.path.clone()));
    if USE_THE_PAGE.contains(&of.package.as_str()) {
        on.extend(files_below(&workspace::root().join("www/dist")));
    }
    (if is_of_tests { Reads::Everything } else { Reads::Data }, on)
}

/// Installs a tool if it is missing; for Chromium, also tries to install its headless shell.
fn set_up(tool: Tool) -> Result<()> {
    tool.ensure()?;
    if tool == Tool::Chromium {
        tools::try_to_install_headless_shell();
    }
    Ok(())
}

/// The build of a tier for this machine: the workspace's tests, and optional parts.
struct NativeBuild {
    with_benchmarks: bool,
    with_fuzz_targets: bool,
    with_query: bool,
}

impl NativeBuild {
    /// Returns the build that the tiers need.
    fn of(tiers: &Tiers) -> Self {
        Self {
            with_benchmarks: tiers.run_step_about(about::BENCHMARKS),
            // libFuzzer is C++. Without it, the native tests still run each target's code briefly.
            with_fuzz_targets: tiers.run_step_about(about::FUZZ) && shell::is_on_path("c++"),
            with_query: tiers.run_step_about(about::QUERY),
        }
    }

    /// Returns cargo's arguments for the features of the tested workspace that are not default.
    fn features(&self) -> [String; 2] {
        let optional = [(self.with_query, QUERY_FEATURE), (self.with_fuzz_targets, FUZZ_FEATURE)];
        let optional = optional.into_iter().filter_map(|(is_needed, feature)| is_needed.then_some(feature));
        let features: Vec<&str> = HAS_WHEEL.then_some(PYTHON_FEATURE).into_iter().chain(optional).collect();
        ["--features".to_owned(), features.join(",")]
    }

    /// Builds and lints the native tests and the benchmarks, and returns all executables. Lints the
    /// command with SQL over archives, too.
    ///
    /// Benchmarks are built by a separate command: with `--all-targets`, cargo builds each example
    /// as a test, but other tests run the example as a program. xtask is built by a separate
    /// command, too: with the workspace's features, its dependencies would be built once more.
    fn run(&self, warnings: &Warnings) -> Result<Vec<Executable>> {
        let [option, features] = self.features();
        let workspace = ["test", "--workspace", "--exclude", "xtask", "--no-run", &option];
        let mut messages = warnings.build(&[&workspace[..], &[&features]].concat())?;
        if self.with_benchmarks {
            messages.extend(warnings.build(&[&workspace[..], &[&features, "--benches"]].concat())?);
        }
        // Uses the profile of the running xtask, so that their dependencies are shared.
        messages.extend(warnings.build(&["test", "--profile", "quick", "--package", "xtask", "--no-run"])?);
        if self.with_query {
            // Built as a test, it does not replace the command's binary that other tests run.
            let features = format!("{features},{COMMAND_QUERY_FEATURE}");
            warnings.build(&[&workspace[..], &[&features, "--bin", "vramscope"]].concat())?;
        }
        let mut all = executables::from_messages(&messages)?;
        all.dedup();
        Ok(all)
    }
}

/// Builds the page unoptimized, and lints its modules.
fn build_test_page(warnings: &Warnings) -> Result<()> {
    build::page_with(|module| warnings.build_with(&module.build_arguments(), &WASM_PROFILE).map(drop))
}

/// Builds and lints the viewer for WebAssembly, with its tests and its benchmark. Returns the
/// executables.
fn build_viewer_tests(warnings: &Warnings) -> Result<Vec<Executable>> {
    let build = ["build", "--package", "vramscope-viewer", "--lib", "--tests", "--examples"];
    let messages = warnings.build_with(&[&build[..], &["--target", tools::WASM_TARGET]].concat(), &WASM_PROFILE)?;
    measure::generate_wasm_benchmark(Profile::Dev)?;
    executables::from_messages(&messages)
}

/// Documents programs, which have no examples to test, and the collector alone: in the workspace, a
/// feature that other crates need hides links that are broken without it.
fn document_alone() -> Result<()> {
    let document = |package: &str| {
        let document = ["doc", "--no-deps", "--package", package];
        shell::run(cargo().args(document).env("RUSTDOCFLAGS", "--deny warnings"))
    };
    ["vramscope-collector", "vramscope", "xtask"].into_iter().try_for_each(document)
}

/// Checks the workspace with `rust-version`, unless the toolchain that runs the other steps is of
/// that version.
fn check_minimum_rust_version() -> Result<()> {
    let minimum = env!("CARGO_PKG_RUST_VERSION");
    let running = shell::output(command("rustc").arg("--version")).ok_or("`rustc --version` failed")?;
    let running = running.split_whitespace().nth(1).unwrap_or_default();
    if is_release_of(running, minimum) {
        shell::print(&format!("this toolchain, {running}, is the minimum supported Rust version"));
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

/// The collector's features. Each must compile without the others.
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

/// Checks that each feature of the collector compiles alone, and that the collector without
/// features needs at most [`MAX_RECORDER_CRATES`] crates.
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
    shell::print(&format!("a recorder without features: {} crates", crates.len()));
    let unwanted = ["axum", "hyper", "rustls", "tokio"].into_iter().find(|name| crates.contains(name));
    match unwanted {
        Some(name) => Err(format!("vramscope-collector without features depends on {name}")),
        None if crates.len() > MAX_RECORDER_CRATES => {
            Err(format!("vramscope-collector without features has {} crates: {}", crates.len(), crates.join(" ")))
        }
        None => Ok(()),
    }
}

/// Maximum number of crates that a program without features needs to record.
const MAX_RECORDER_CRATES: usize = 40;

/// Runs the tests of the archive that use every store, with a bucket of a local S3 server.
fn archive_on_s3(all: &[Executable]) -> Result<()> {
    let folder = workspace::root().join("tests/archive");
    let python = python_env::environment_of_file("s3-server", &folder.join("requirements.txt"))?;
    let tests = executables::find(all, "vramscope-fleet", "lib", "unit")?;
    let mut command = command(&python.to_string_lossy());
    command.arg(folder.join("with_s3.py")).arg(&tests.path).arg("archive::tests");
    shell::run(command.current_dir(&tests.folder))
}

/// Arguments of brief simulations of a run: summaries of ranks with the fleet page open, every
/// event of ranks, and an archived history.
const SIMULATIONS: [&[&str]; 3] = [
    &["ranks=64", "batch=8", "seconds=5", "outliers=3", "kills=1", "page=1"],
    &["events=1000", "ranks=4", "seconds=3"],
    &["day=1", "ranks=2", "seconds=10", "moments=10"],
];

/// The environment variable with the folder for the archive of a simulated run.
const ARCHIVE_VARIABLE: &str = "VRAMSCOPE_ARCHIVE";

/// Runs brief simulations of a training run on many machines. A simulation fails if data is lost,
/// and prints the delays of late data.
fn simulate_fleet(all: &[Executable]) -> Result<()> {
    let simulator = executables::find(all, TESTS_PACKAGE, "bin", "fleet")?;
    let archive = workspace::target_dir()?.join("simulated-archive");
    // The archive of an earlier simulation would be continued.
    let _ = fs::remove_dir_all(&archive);
    let (server, binary) = (nats::server()?, build::binary_path(Profile::Dev)?);
    SIMULATIONS.iter().try_for_each(|arguments| {
        let mut command = simulator.command();
        command.env(nats::SERVER_VARIABLE, &server).env(measure::BINARY_VARIABLE, &binary);
        shell::run(command.env(ARCHIVE_VARIABLE, &archive).args(*arguments))
    })
}

/// Runs tests that need a browser and the command, which a plain `cargo test` ignores. `tests` are
/// arguments that select them. `headless_shell` is the path of a headless shell to use instead of
/// Chromium.
fn end_to_end(all: &[Executable], tests: &[&str], headless_shell: Option<PathBuf>) -> Result<()> {
    let [package, example] = measure::LOAD_GENERATOR;
    let variables = [
        (measure::BINARY_VARIABLE, build::binary_path(Profile::Dev)?),
        // The programs are unoptimized, because these tests do not measure speed.
        (measure::LOAD_VARIABLE, executables::find(all, package, "example", example)?.path.clone()),
        (measure::WASM_BENCHMARK_VARIABLE, measure::wasm_benchmark_folder()?),
        (measure::AXE_VARIABLE, exports::axe_script()?),
    ];
    let mut browser = executables::find(all, TESTS_PACKAGE, "test", "it")?.command();
    let headless_shell = headless_shell.map(|path| (measure::HEADLESS_SHELL_VARIABLE, path));
    shell::run(browser.arg("--ignored").args(tests).envs(variables).envs(headless_shell))
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
