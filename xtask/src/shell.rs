//! Runs other programs.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A result whose error is a message for the terminal.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Returns the workspace's root folder.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Returns a command for the cargo that runs this program.
pub(crate) fn cargo() -> Command {
    command(&env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
}

/// Returns a command that runs in the workspace's root, without stdin, with stdout sent to stderr.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null()).stdout(Stdio::from(io::stderr()));
    // The folder of `cargo install` may not be on the PATH.
    if let Ok(path) = env::join_paths(search_path()) {
        command.env("PATH", path);
    }
    command
}

/// Prints a command and runs it. A failed exit status is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    eprintln!("$ {line}");
    let status = command.status().map_err(|error| format!("cannot run `{line}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed: {status}")) }
}

/// Runs a command silently. Returns its stdout, or `None` if it is missing or fails.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns true if a program of this name is on the search path.
pub(crate) fn is_on_path(program: &str) -> bool {
    search_path().iter().any(|folder| folder.join(program).with_extension(env::consts::EXE_EXTENSION).is_file())
}

/// Returns the folders that are searched for programs: cargo's own, then those of `PATH`.
fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        env::var_os("HOME").or_else(|| env::var_os("USERPROFILE")).map(|home| PathBuf::from(home).join(".cargo"))
    });
    cargo_home.map(|home| home.join("bin")).into_iter().chain(env::split_paths(&path)).collect()
}

/// Returns the command line as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let name = program.file_stem().map_or_else(OsString::new, OsString::from);
    let mut line = name.to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
