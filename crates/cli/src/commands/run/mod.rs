//! `vramscope run`: starts a Python program and shows PyTorch's GPU memory in all its processes.
//!
//! The program itself is not changed. Python imports a module `sitecustomize` when it starts, and
//! the one that this command puts on the module path starts vramscope's package as soon as the
//! program imports PyTorch. Every Python process that the program starts inherits that, so the
//! ranks of `torchrun` appear on one page. Processes that outlive the command inherit it, too, so
//! the module is in a folder that stays and that no other user can write.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use clap::Args;
use tempfile::NamedTempFile;
use vramscope_collector::{PUSH_VARIABLE, push_from_env};

use crate::attach::own_package;
use crate::error::{CommandError, Result};
use crate::merge_server::{MergeServer, MergeSource, OnUnwritable};
use crate::private_folder::{check_private, create_private, data_folder};
use crate::retention::RetentionArguments;
use crate::server::{AnnounceOn, ServerArguments};
use crate::signals::Interrupts;
use crate::terminal;

/// Text after the options in `vramscope run --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope run train.py --epochs 3
  vramscope run --record train.vram python -m trainer
  vramscope run torchrun --nproc-per-node 4 train.py
  vramscope run --listen 127.0.0.1:0 accelerate launch train.py

The exit code is the program's. On a terminal, the page stays open after the program until Ctrl-C.";

/// The source of the module that Python imports when it starts, for a command that was installed
/// without the package. The file in this repository is a link to the package's file.
const SITE_CUSTOMIZE: &str = include_str!("sitecustomize.py");
const _: () = assert!(
    SITE_CUSTOMIZE.as_bytes()[0] == b'"',
    "src/commands/run/sitecustomize.py is no link: check out the repository with links (git config core.symlinks true)"
);
/// File name of the module that Python imports when it starts.
const SITE_CUSTOMIZE_NAME: &str = "sitecustomize.py";
/// Path of the folder with the module, in the package.
const PACKAGE_SITE: &str = "vramscope/_site";
/// Name of the folder with the module, in the folder for this user's data.
const DATA_SITE: &str = "site";
/// Environment variable with the folders from which Python imports modules.
const MODULE_PATH: &str = "PYTHONPATH";
/// Environment variable that tells the package which call stacks to record.
const STACKS: &str = "VRAMSCOPE_STACKS";
/// Environment variable with the folder that contains the package, for a Python that lacks it.
const PACKAGE_FOLDER: &str = "VRAMSCOPE_PACKAGE";
/// The package's file that [`SITE_CUSTOMIZE`] runs when Python starts.
const PACKAGE_IMPORTS: &str = "_imports.py";
/// The value that shells add to a signal's number to get the exit code of a program that it ended.
const SIGNAL_EXIT: i32 = 128;

/// Arguments of `vramscope run`: the file to record to, the server, and the program.
#[derive(Args, Debug)]
pub(crate) struct RunArguments {
    /// Also write the recording to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Call stacks to record
    #[arg(long, value_name = "KIND", value_parser = ["python", "all", "none"], default_value = "python")]
    stacks: String,
    #[command(flatten)]
    retention: RetentionArguments,
    #[command(flatten)]
    server: ServerArguments,
    /// Python script, or a program such as torchrun, with its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs the program and serves the page. Returns the program's exit code.
///
/// If the user has set [`PUSH_VARIABLE`] and no option asks for a page or a file, the program
/// pushes to that server and no page is served.
pub(crate) fn run(arguments: &RunArguments) -> Result<u8> {
    let RunArguments { record, stacks, retention, server, program } = arguments;
    let is_shown_here = record.is_some() || server.asks_for_page();
    let push = push_from_env().map_err(CommandError::new)?;
    let push = push.as_ref();
    let interrupts = Interrupts::listen()?;
    let package = own_package(None);
    let site = site_folder(package.as_deref())?;
    let merge = match push {
        Some(address) if !is_shown_here => {
            retention.require_file(None)?;
            terminal::message(format_args!(
                "{PUSH_VARIABLE} is set: the program pushes to {address}, and no page is served here"
            ));
            None
        }
        _ => {
            retention.require_file(record.as_deref())?;
            let record = record.as_deref();
            // A file that cannot be created does not keep the program from running.
            let on_unwritable = OnUnwritable::Continue;
            Some(MergeServer::start(MergeSource::Push, server, record, retention, on_unwritable, AnnounceOn::Stderr)?)
        }
    };
    if let (Some(address), Some(_)) = (push, &merge) {
        terminal::message(format_args!(
            "{PUSH_VARIABLE} is ignored: the page and the file are those of this command; without options for them, \
             the program pushes to {address}"
        ));
    }

    let mut command = python_command(program);
    command.env(MODULE_PATH, module_path(&site, env::var_os(MODULE_PATH).as_deref())?);
    command.env(STACKS, stacks);
    if let Some(merge) = &merge {
        command.env(PUSH_VARIABLE, merge.push_url());
    }
    if let Some(package) = package {
        // Every Python of the program runs code from this folder, also after this command has
        // ended. A Python that lacks the package and does not get the folder prints a message.
        let files = [package.join("vramscope"), package.join("vramscope").join(PACKAGE_IMPORTS)];
        if files.iter().all(|file| check_private(file).is_ok()) {
            command.env(PACKAGE_FOLDER, package);
        }
    }
    let name = program[0].display();
    let mut child = command.spawn().map_err(|error| CommandError::new(format_args!("cannot run {name}: {error}")))?;
    // Ctrl-C need not be forwarded: the program belongs to this terminal and receives it. The
    // program runs, so an error here must not end this command before the program.
    let forwarding = forward_termination(&child).map_err(terminal::message).ok();
    let status = child.wait().map_err(|error| CommandError::new(format_args!("{name}: {error}")))?;
    drop(forwarding);
    if let Some(merge) = merge {
        if terminal::is_interactive() && !interrupts.requested() {
            terminal::message(format_args!("{name} has ended; the page stays open until Ctrl-C"));
            interrupts.wait();
        }
        // If the file could not be written, the exit code is still the program's.
        if let Err(error) = merge.stop() {
            terminal::message(error);
        }
    }
    Ok(exit_code(status))
}

/// A guard that forwards SIGTERM to the program: a container or user that ends this command wants
/// to end the program. Dropping it ends the forwarding.
#[cfg(target_os = "linux")]
struct Forwarding(signal_hook::iterator::Handle);

#[cfg(target_os = "linux")]
impl Drop for Forwarding {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Starts to forward SIGTERM to a program.
#[cfg(target_os = "linux")]
fn forward_termination(program: &Child) -> Result<Forwarding> {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    let failed = |error: std::io::Error| {
        CommandError::new(format_args!("SIGTERM to this command will not reach the program: {error}"))
    };
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGTERM]).map_err(failed)?;
    let handle = signals.handle();
    let pid = i32::try_from(program.id()).map(Pid::from_raw);
    let forward = move || {
        for _ in signals.forever() {
            if let Ok(pid) = pid {
                // An error means that the program has ended.
                let _ = kill(pid, Signal::SIGTERM);
            }
        }
    };
    std::thread::Builder::new().name("vramscope-forward".into()).spawn(forward).map_err(failed)?;
    Ok(Forwarding(handle))
}

/// An empty guard: the system has no SIGTERM, or programs there do not expect it.
#[cfg(not(target_os = "linux"))]
struct Forwarding;

/// Does nothing; see [`Forwarding`].
#[cfg(not(target_os = "linux"))]
fn forward_termination(_program: &Child) -> Result<Forwarding> {
    Ok(Forwarding)
}

/// Returns the exit code that a shell reports for a program.
fn exit_code(status: ExitStatus) -> u8 {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    let signal: Option<i32> = None;
    let code = status.code().or(signal.map(|signal| SIGNAL_EXIT + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

/// Returns the command that runs `program`: its path and arguments. Python runs a script (`.py`).
fn python_command(program: &[OsString]) -> Command {
    let is_script = Path::new(&program[0]).extension().is_some_and(|extension| extension == "py");
    if !is_script {
        let mut command = Command::new(&program[0]);
        command.args(&program[1..]);
        return command;
    }
    // In a virtual environment, Python is in the folder of this command.
    let beside = env::current_exe().ok().and_then(|path| Some(path.parent()?.join("python3")));
    let python = beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("python3"));
    let mut command = Command::new(python);
    command.args(program);
    command
}

/// Returns the folder with the module `sitecustomize`: the folder in `package` if no other user can
/// write it, else a folder in this user's data.
fn site_folder(package: Option<&Path>) -> Result<PathBuf> {
    let of_package = package
        .map(|package| package.join(PACKAGE_SITE))
        .filter(|site| check_private(site).is_ok() && check_private(&site.join(SITE_CUSTOMIZE_NAME)).is_ok());
    of_package.map_or_else(|| write_site_customize(&data_folder()?.join(DATA_SITE)), fs::canonicalize).map_err(
        |error| {
            CommandError::new(format_args!(
                "no folder for the module that starts the recording is safe from other users: {error}; install the \
             package (pip install vramscope), or set XDG_DATA_HOME to a folder that only you can write"
            ))
        },
    )
}

/// Writes the module `sitecustomize` to a folder, which is created if necessary. Returns the
/// folder's canonical path. Replaces the file atomically, because programs may import it at any
/// time.
fn write_site_customize(folder: &Path) -> io::Result<PathBuf> {
    let folder = create_private(folder)?;
    let path = folder.join(SITE_CUSTOMIZE_NAME);
    let is_current = fs::symlink_metadata(&path).is_ok_and(|status| status.is_file())
        && check_private(&path).is_ok()
        && fs::read(&path).is_ok_and(|text| text == SITE_CUSTOMIZE.as_bytes());
    if !is_current {
        let mut file = NamedTempFile::new_in(&folder)?;
        io::Write::write_all(&mut file, SITE_CUSTOMIZE.as_bytes())?;
        file.persist(&path).map_err(|error| error.error)?;
    }
    Ok(folder)
}

/// Returns the value of `PYTHONPATH` with `folder` before the `current` value.
fn module_path(folder: &Path, current: Option<&OsStr>) -> Result<OsString> {
    let rest = current.filter(|value| !value.is_empty()).into_iter().flat_map(env::split_paths);
    env::join_paths(std::iter::once(folder.to_owned()).chain(rest))
        .map_err(|error| CommandError::new(format_args!("{MODULE_PATH}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_scripts_are_run_by_python() {
        let command = |program: &[&str]| {
            let program: Vec<OsString> = program.iter().map(Into::into).collect();
            let command = python_command(&program);
            let arguments: Vec<_> =
                command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
            (command.get_program().to_string_lossy().into_owned(), arguments)
        };
        let (program, arguments) = command(&["runs/train.py", "--lr", "1"]);
        assert!(program.ends_with("python3"), "{program}");
        assert_eq!(arguments, ["runs/train.py", "--lr", "1"]);
        assert_eq!(command(&["torchrun", "train.py"]), ("torchrun".to_owned(), vec!["train.py".to_owned()]));
    }

    #[test]
    fn module_path_keeps_the_programs_own_folders() {
        let folder = Path::new("/tmp/run");
        assert_eq!(module_path(folder, None).expect("no colon"), "/tmp/run");
        assert_eq!(module_path(folder, Some(OsStr::new(""))).expect("no colon"), "/tmp/run");
        #[cfg(unix)]
        assert_eq!(module_path(folder, Some(OsStr::new("/a:/b"))).expect("no colon"), "/tmp/run:/a:/b");
    }
}
