//! Lints code while cargo builds it, so that no crate is compiled once more for it.
//!
//! `clippy-driver` is the compiler with more lints: `cargo clippy` sets it as the compiler of the
//! workspace's crates, but only checks them, for which it also checks every dependency. `cargo test
//! --doc` runs rustdoc on each library that it has built; a program in its place can document the
//! library, too, with the lints of rustdoc.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use serde_json::Value;

use crate::shell::{self, Result, cargo, command};
use crate::workspace;

/// The environment variable with which cargo compiles the workspace's crates by another program.
const WRAPPER_VARIABLE: &str = "RUSTC_WORKSPACE_WRAPPER";
/// The environment variable that makes this program act as rustdoc; it has the path of rustdoc.
const RUSTDOC_VARIABLE: &str = "VRAMSCOPE_XTASK_RUSTDOC";
/// The environment variable with the folder of the documentation that rustdoc makes then.
const FOLDER_VARIABLE: &str = "VRAMSCOPE_XTASK_DOCUMENTATION";

/// Returns the path of a program of the toolchain.
fn toolchain_program(name: &str) -> Result<PathBuf> {
    let sysroot = shell::output(command("rustc").args(["--print", "sysroot"]));
    let sysroot = sysroot.ok_or("`rustc --print sysroot` failed")?;
    Ok(Path::new(&sysroot).join("bin").join(name).with_extension(env::consts::EXE_EXTENSION))
}

/// Returns a cargo command that lints the workspace's crates by clippy if it compiles them. What it
/// builds is not what cargo builds without clippy.
pub(crate) fn cargo_with_clippy() -> Result<Command> {
    let mut cargo = cargo();
    set_clippy(&mut cargo)?;
    Ok(cargo)
}

/// Makes clippy compile what the cargo of this command compiles.
pub(crate) fn set_clippy(command: &mut Command) -> Result<()> {
    command.env(WRAPPER_VARIABLE, toolchain_program("clippy-driver")?);
    Ok(())
}

/// Builds with clippy. Returns cargo's messages; a warning is an error.
pub(crate) fn build(arguments: &[&str]) -> Result<Vec<Value>> {
    let messages = shell::cargo_messages(cargo_with_clippy()?.args(arguments))?;
    match messages.iter().filter(|message| is_warning(message)).count() {
        0 => Ok(messages),
        count => Err(format!("{count} warnings of the compiler or clippy, each shown above")),
    }
}

/// Returns true if a message of cargo has a warning in the workspace's code.
fn is_warning(message: &Value) -> bool {
    message["reason"] == "compiler-message" && message["message"]["level"] == "warning"
}

/// Runs the examples in the documentation of libraries that [`build`] has built, and documents each
/// library; a warning of rustdoc is an error.
pub(crate) fn test_documentation(features: &[&str]) -> Result<()> {
    let this = env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
    let mut test = cargo_with_clippy()?;
    test.args(["test", "--workspace", "--exclude", "xtask", "--doc"]).args(features).env("RUSTDOC", this);
    test.env(FOLDER_VARIABLE, workspace::target_dir()?.join("linted-documentation"));
    shell::run(test.env(RUSTDOC_VARIABLE, toolchain_program("rustdoc")?))
}

/// Acts as rustdoc if this program was started as such: documents a library before its examples are
/// run. Returns `None` otherwise.
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

/// Returns the arguments with which rustdoc documents what it would test with `arguments`; `None`
/// if it would not test.
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
        let message = |reason: &str, level: &str| json!({"reason": reason, "message": {"level": level}});
        assert!(is_warning(&message("compiler-message", "warning")));
        assert!(!is_warning(&message("compiler-message", "note")));
        assert!(!is_warning(&json!({"reason": "compiler-artifact"})));
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
