//! Lints code while cargo builds it, so that no crate is compiled a second time for lints.
//!
//! `clippy-driver` is the Rust compiler with more lints. It skips optimizations of the intermediate
//! code but keeps LLVM's, so tests are not slower. `cargo clippy` uses it for the workspace's
//! crates, but only checks them, and therefore checks every dependency once more. `cargo test
//! --doc` runs rustdoc on each library that it has built. In rustdoc's place, this program runs
//! rustdoc twice: it also documents the library, with rustdoc's lints.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::shell::{self, Result, cargo, command};
use crate::workspace;

/// The environment variable with the program by which cargo compiles the workspace's crates.
const WRAPPER_VARIABLE: &str = "RUSTC_WORKSPACE_WRAPPER";
/// The environment variable with the path of rustdoc. If it is set, this program acts as rustdoc.
const RUSTDOC_VARIABLE: &str = "VRAMSCOPE_XTASK_RUSTDOC";
/// The environment variable with the folder for the documentation.
const FOLDER_VARIABLE: &str = "VRAMSCOPE_XTASK_DOCUMENTATION";

/// Returns the path of a program of the toolchain.
fn toolchain_program(name: &str) -> Result<PathBuf> {
    let sysroot = shell::output(command("rustc").args(["--print", "sysroot"]));
    let sysroot = sysroot.ok_or("`rustc --print sysroot` failed")?;
    Ok(Path::new(&sysroot).join("bin").join(name).with_extension(env::consts::EXE_EXTENSION))
}

/// Returns a cargo command that lints the workspace's crates with clippy when it compiles them. A
/// cargo without clippy does not reuse its build results.
fn cargo_with_clippy() -> Result<Command> {
    let mut cargo = cargo();
    set_clippy(&mut cargo)?;
    Ok(cargo)
}

/// Makes clippy compile the crates that the cargo command `command` compiles.
pub(crate) fn set_clippy(command: &mut Command) -> Result<()> {
    command.env(WRAPPER_VARIABLE, toolchain_program("clippy-driver")?);
    Ok(())
}

/// The warnings of the compiler and clippy in several builds. A warning does not fail its build,
/// because other steps need the build's results.
#[derive(Default)]
pub(crate) struct Warnings(Mutex<Vec<String>>);

impl Warnings {
    /// Builds with clippy and keeps the warnings. Returns cargo's messages.
    pub(crate) fn build(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        self.build_with(arguments, &[])
    }

    /// Builds with clippy and further environment variables of cargo, and keeps the warnings.
    /// Returns cargo's messages.
    pub(crate) fn build_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Result<Vec<Value>> {
        let mut cargo = cargo_with_clippy()?;
        let messages = shell::cargo_messages(cargo.args(arguments).envs(variables.iter().copied()))?;
        let mut warnings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        warnings.extend(messages.iter().filter_map(warning).map(str::to_owned));
        Ok(messages)
    }

    /// Prints all warnings. Fails if there are any.
    pub(crate) fn check(&self) -> Result<()> {
        let mut warnings = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        warnings.sort();
        // A library and its tests share code, whose warnings occur twice.
        warnings.dedup();
        warnings.iter().for_each(|warning| shell::print(warning));
        if warnings.is_empty() { Ok(()) } else { Err(format!("{} warnings", warnings.len())) }
    }
}

/// Returns the text of a message of cargo if it is a warning about the workspace's code. Leaves out
/// a warning without a source line, which only counts the others.
fn warning(message: &Value) -> Option<&str> {
    let diagnostic = &message["message"];
    let is_warning = message["reason"] == "compiler-message"
        && diagnostic["level"] == "warning"
        && diagnostic["spans"].as_array().is_some_and(|spans| !spans.is_empty());
    is_warning.then(|| diagnostic["rendered"].as_str().unwrap_or_default())
}

/// Runs the examples in the documentation of libraries that were built with clippy, and documents
/// each library; a warning of rustdoc is an error.
pub(crate) fn test_documentation(features: &[&str]) -> Result<()> {
    let this = env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    let mut test = cargo_with_clippy()?;
    test.args(["test", "--workspace", "--exclude", "xtask", "--doc"]).args(features).env("RUSTDOC", this);
    test.env(FOLDER_VARIABLE, workspace::target_dir()?.join("linted-documentation"));
    shell::run(test.env(RUSTDOC_VARIABLE, toolchain_program("rustdoc")?))
}

/// Acts as rustdoc if cargo has started this program in rustdoc's place: documents a library, then
/// runs its examples. Returns `None` if this program was not started as rustdoc.
pub(crate) fn run_as_rustdoc() -> Option<ExitCode> {
    let (rustdoc, folder) = (env::var_os(RUSTDOC_VARIABLE)?, env::var_os(FOLDER_VARIABLE)?);
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let documented = without_tests(&arguments).map(|documented| {
        let lints = ["--deny", "warnings", "--out-dir"].map(OsString::from);
        documented.into_iter().chain(lints).chain([folder]).collect()
    });
    let mut commands = documented.into_iter().chain([arguments]);
    let is_success =
        |arguments: Vec<OsString>| Command::new(&rustdoc).args(arguments).status().is_ok_and(|status| status.success());
    Some(if commands.all(is_success) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the arguments with which rustdoc documents the library that it would test with
/// `arguments`; `None` if `arguments` do not make it test.
fn without_tests(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let mut documented = Vec::new();
    let mut is_test = false;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--test") => is_test = true,
            Some("--nocapture") => {}
            Some("--test-args" | "--test-run-directory") => drop(arguments.next()),
            _ => documented.push(argument.clone()),
        }
    }
    is_test.then_some(documented)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn warnings_are_told_from_other_messages() {
        let message = |level: &str, spans: &[u8]| {
            let diagnostic = json!({"level": level, "spans": spans, "rendered": "text"});
            json!({"reason": "compiler-message", "message": diagnostic})
        };
        assert_eq!(warning(&message("warning", &[1])), Some("text"));
        for other in [message("warning", &[]), message("note", &[1]), json!({"reason": "compiler-artifact"})] {
            assert_eq!(warning(&other), None);
        }
    }

    #[test]
    fn tested_library_is_documented_without_the_arguments_of_tests() {
        let arguments = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let tested = "--crate-name pool --test src/lib.rs --test-run-directory /pool --test-args a --extern b=c";
        let documented = "--crate-name pool src/lib.rs --extern b=c";
        assert_eq!(without_tests(&arguments(tested)), Some(arguments(documented)));
        assert_eq!(without_tests(&arguments("--version")), None);
    }
}
