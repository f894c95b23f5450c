//! Runs other programs.

use std::cell::RefCell;
use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use serde_json::Value;

/// A result whose error is a message for the terminal.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Returns the workspace's root folder.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The log for the output of a thread's commands and messages, and the priority of its commands.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// The file for all output.
    pub(crate) log: File,
    /// True if the commands run with low priority, so that other programs run first.
    pub(crate) is_low_priority: bool,
}

impl Surroundings {
    /// Returns a copy, which writes to this log as well.
    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { log: self.log.try_clone()?, is_low_priority: self.is_low_priority })
    }
}

thread_local! {
    /// The surroundings of the step that this thread runs; `None` outside of `cargo xtask test`.
    static SURROUNDINGS: RefCell<Option<Surroundings>> = const { RefCell::new(None) };
}

/// Runs `work` with these surroundings for the commands and messages of this thread.
pub(crate) fn within<T>(surroundings: Surroundings, work: impl FnOnce() -> T) -> T {
    SURROUNDINGS.set(Some(surroundings));
    let result = work();
    SURROUNDINGS.set(None);
    result
}

/// Calls `work` with all items in parallel, each on a thread with the surroundings of this thread.
/// Returns the first error.
pub(crate) fn at_once<T: Send>(
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let surroundings = || SURROUNDINGS.with_borrow(|surroundings| surroundings.as_ref().map(Surroundings::try_clone));
    thread::scope(|scope| {
        let start = |item| {
            let surroundings = surroundings().transpose().map_err(|error| format!("the step's log: {error}"))?;
            let work = &work;
            Ok(scope.spawn(move || match surroundings {
                Some(surroundings) => within(surroundings, || work(item)),
                None => work(item),
            }))
        };
        let threads = items.into_iter().map(start).collect::<Result<Vec<_>>>()?;
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Prints a message on stderr, or into the log of the step that this thread runs.
pub(crate) fn print(message: &str) {
    SURROUNDINGS.with_borrow_mut(|surroundings| match surroundings {
        // Ignore errors of writing to the log, as those of writing to stderr.
        Some(surroundings) => drop(writeln!(surroundings.log, "{message}")),
        None => eprintln!("{message}"),
    });
}

/// Returns a command for the cargo that runs this program.
pub(crate) fn cargo() -> Command {
    command(&env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
}

/// Returns a command that runs in the workspace's root, without stdin, with stdout sent to stderr.
/// In a step, both go to the step's log.
pub(crate) fn command(program: &str) -> Command {
    let mut command = SURROUNDINGS.with_borrow(|surroundings| match surroundings {
        Some(surroundings) => command_within(surroundings, program),
        None => {
            let mut command = Command::new(program);
            command.stdout(Stdio::from(io::stderr()));
            command
        }
    });
    command.current_dir(root()).stdin(Stdio::null());
    // The folder of `cargo install` may not be on the PATH.
    if let Ok(path) = env::join_paths(search_path()) {
        command.env("PATH", path);
    }
    command
}

/// Returns a command with the output and the priority of a step.
fn command_within(surroundings: &Surroundings, program: &str) -> Command {
    let mut command = if surroundings.is_low_priority && is_on_path("nice") {
        let mut nice = Command::new("nice");
        nice.args(["-n", "10", program]);
        nice
    } else {
        Command::new(program)
    };
    // Without its log, a command would print between the output of other steps.
    let output = || surroundings.log.try_clone().map_or_else(|_| Stdio::null(), Stdio::from);
    command.stdout(output()).stderr(output());
    command
}

/// Prints a command and runs it. A failed exit status is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = shown(command);
    print(&format!("$ {line}"));
    let status = command.status().map_err(|error| format!("cannot run `{line}`: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{line}` failed: {status}")) }
}

/// Runs a command. Returns one text with its command line, output and time, and an error if its
/// exit status is a failure.
pub(crate) fn run_captured(command: &mut Command) -> (String, Result<()>) {
    let (line, start) = (shown(command), Instant::now());
    let captured = tempfile::tempfile().and_then(|mut file| {
        let status = command.stdout(file.try_clone()?).stderr(file.try_clone()?).status()?;
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut bytes)?;
        // Tests may print any bytes.
        Ok((String::from_utf8_lossy(&bytes).into_owned(), status))
    });
    match captured {
        Ok((output, status)) => {
            let text = format!("$ {line}\n{output}({line}: {:.1} s)", start.elapsed().as_secs_f64());
            let failed = || format!("`{line}` failed: {status}");
            (text, if status.success() { Ok(()) } else { Err(failed()) })
        }
        Err(error) => (format!("$ {line}"), Err(format!("cannot run `{line}`: {error}"))),
    }
}

/// Runs a cargo command that compiles, and prints the compiler's diagnostics. Returns cargo's
/// messages.
pub(crate) fn cargo_messages(command: &mut Command) -> Result<Vec<Value>> {
    let line = shown(command);
    print(&format!("$ {line}"));
    command.args(["--message-format", "json"]).stdout(Stdio::piped());
    let output = command.spawn().and_then(Child::wait_with_output);
    let output = output.map_err(|error| format!("cannot run `{line}`: {error}"))?;
    let lines = String::from_utf8_lossy(&output.stdout);
    // Ignores lines that are not JSON.
    let messages: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    messages.iter().filter_map(|message| message["message"]["rendered"].as_str()).for_each(print);
    if output.status.success() { Ok(messages) } else { Err(format!("`{line}` failed: {}", output.status)) }
}

/// Runs a command silently. Returns its stdout, or `None` if it is missing or fails.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdout(Stdio::piped()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns true if a program of this name is on the search path.
pub(crate) fn is_on_path(program: &str) -> bool {
    find_program(program).is_some()
}

/// Returns the path of the program of this name on the search path.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path_in = |folder: PathBuf| folder.join(name).with_extension(env::consts::EXE_EXTENSION);
    search_path().into_iter().map(path_in).find(|path| path.is_file())
}

/// Returns the folders that are searched for programs: cargo's own, then those of `PATH`.
fn search_path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cargo_home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        env::var_os("HOME").or_else(|| env::var_os("USERPROFILE")).map(|home| PathBuf::from(home).join(".cargo"))
    });
    cargo_home.map(|home| home.join("bin")).into_iter().chain(env::split_paths(&path)).collect()
}

/// Returns the command line as a user would type it.
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
