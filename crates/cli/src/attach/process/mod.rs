//! Runs a Python program in another process that runs Python.
//!
//! [`PythonProcess::run`] writes the program to a temporary folder and makes the interpreter of the
//! process start a thread that runs it. The thread writes its result to the folder. The request to
//! the interpreter depends on its version: `pending_calls` is for Python 3.10 to 3.13,
//! `remote_exec` for 3.14. Both write to the process's memory while its threads are stopped
//! (`stop`), for a few milliseconds; no code of the process is changed and no call is forced on a
//! thread.
//!
//! Everything that is read from the process is checked first: `target` is the process and its
//! memory, `image` finds the interpreter, `layout` has the offsets of its data structures. On any
//! doubt nothing is written.

mod image;
mod layout;
mod pending_calls;
mod remote_exec;
mod script;
mod stop;
mod target;
#[cfg(test)]
mod tests;
mod text_space;

use std::thread;
use std::time::{Duration, Instant};

use crate::attach::wait::Wait;
use crate::error::{CommandError, Result};
use image::PythonImage;
use remote_exec::Threads;
use script::ScriptFolder;
use stop::{StopError, with_stopped_threads};
use target::TargetProcess;

/// The most time that another debugger or a busy thread may delay the start.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the process is stopped again after a failed attempt.
const BUSY_DELAY: Duration = Duration::from_millis(50);
/// Interval at which the temporary folder is checked for the result.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// When the interpreter is woken again if it has not started the program; doubled each time.
const FIRST_WAKE: Duration = Duration::from_secs(1);
/// After this time without an answer, the user is told.
const SLOW: Duration = Duration::from_secs(10);

/// A process with a Python interpreter that can run a program.
pub(crate) struct PythonProcess {
    process: TargetProcess,
    image: PythonImage,
}

impl PythonProcess {
    /// Finds the process with the id `pid` and its interpreter; fails if there is none or its
    /// version is not supported. Changes nothing in the process.
    pub(crate) fn find(pid: u32) -> Result<Self> {
        let process = TargetProcess::find(pid)?;
        let image = PythonImage::find(&process, &process.mappings()?)?;
        Ok(Self { process, image })
    }

    /// Returns true while the process runs.
    pub(crate) fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Returns the minor version of Python: 12 for 3.12.
    pub(crate) fn python_minor(&self) -> u8 {
        self.image.version.minor
    }

    /// Runs the Python program `code` in a new thread of the process and returns the text that it
    /// assigns to the name `reply`. An exception in the program is returned as an error.
    pub(crate) fn run(&self, code: &str, wait: &Wait<'_>) -> Result<String> {
        let folder = ScriptFolder::create(&self.process, code)?;
        let mut request = Request { target: self, folder: &folder, text: None };
        let started_at = Instant::now();
        request.start(wait)?;
        let (mut next_wake, mut is_told) = (FIRST_WAKE, false);
        loop {
            if let Some(result) = folder.result()? {
                request.withdraw();
                let pid = self.process.pid();
                return result.map_err(|reason| CommandError::new(format_args!("process {pid}: {reason}")));
            }
            let (elapsed, has_started) = (started_at.elapsed(), folder.has_started());
            if !self.process.is_running() {
                return Err(CommandError::new(format_args!("process {} has ended", self.process.pid())));
            }
            let is_cancelled = (wait.is_cancelled)();
            if elapsed >= wait.timeout || is_cancelled {
                request.withdraw();
                return Err(if is_cancelled { self.cancelled() } else { self.no_answer(elapsed, has_started) });
            }
            if elapsed >= next_wake && !has_started {
                request.repeat();
                next_wake *= 2;
            }
            if elapsed >= SLOW && !std::mem::replace(&mut is_told, true) {
                let state = if has_started { "is still starting the recording" } else { "does not answer yet" };
                (wait.on_slow)(&format!(
                    "process {} {state}: {}; waiting for at most {} s",
                    self.process.pid(),
                    self.slow_reason(has_started),
                    wait.timeout.as_secs()
                ));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Creates the error of a wait that was ended early.
    fn cancelled(&self) -> CommandError {
        CommandError::new(format_args!("interrupted before process {} answered", self.process.pid()))
    }

    /// Creates the error of a process that did not answer in time.
    fn no_answer(&self, elapsed: Duration, has_started: bool) -> CommandError {
        let pid = self.process.pid();
        let seconds = elapsed.as_secs();
        let reason = self.slow_reason(has_started);
        CommandError::new(format_args!(
            "process {pid} did not answer within {seconds} s: {reason}; try again or raise --timeout"
        ))
    }

    /// Returns why the process may answer late.
    fn slow_reason(&self, has_started: bool) -> &'static str {
        if self.process.is_suspended() {
            "it is suspended; continue it with kill -CONT"
        } else if has_started {
            "its threads are busy"
        } else {
            "its main thread is in a long call outside of Python"
        }
    }
}

/// The request to a process to start the program in a folder.
struct Request<'a> {
    target: &'a PythonProcess,
    folder: &'a ScriptFolder,
    /// Address in the process of the text to run, once it is queued (Python 3.10 to 3.13).
    text: Option<u64>,
}

impl Request<'_> {
    /// Returns true if the interpreter has the interface of `remote_exec`.
    fn is_remote_exec(&self) -> bool {
        self.target.image.version.minor >= 14
    }

    /// Passes the request to the interpreter.
    fn start(&mut self, wait: &Wait<'_>) -> Result {
        let PythonProcess { process, image } = self.target;
        let deadline = Instant::now() + BUSY_TIMEOUT.min(wait.timeout);
        loop {
            let attempt = if self.is_remote_exec() {
                let script = self.folder.starter_path();
                with_stopped_threads(process, || remote_exec::request(process, image, script, Threads::Main))
                    .map(|()| None)
            } else {
                let text = self.folder.starter();
                with_stopped_threads(process, || pending_calls::enqueue(process, image, text)).map(Some)
            };
            match attempt {
                Ok(text) => {
                    self.text = text;
                    return Ok(());
                }
                Err(StopError::Failed(error)) => return Err(error),
                Err(StopError::Busy(reason)) if Instant::now() > deadline || (wait.is_cancelled)() => {
                    return Err(CommandError::new(reason));
                }
                Err(StopError::Busy(_)) => thread::sleep(BUSY_DELAY),
            }
        }
    }

    /// Repeats the request to an interpreter that has not started the program. Failures are
    /// ignored: the first request is still in effect.
    fn repeat(&mut self) {
        let PythonProcess { process, image } = self.target;
        if let Some(address) = self.text {
            let text = self.folder.starter();
            let repeated = with_stopped_threads(process, || pending_calls::repeat(process, image, text, address));
            self.text = Some(repeated.unwrap_or(address));
        } else {
            let script = self.folder.starter_path();
            let _ = with_stopped_threads(process, || remote_exec::request(process, image, script, Threads::All));
        }
    }

    /// Withdraws the request from threads that have not carried it out. A pending call does nothing
    /// once the folder no longer exists, but Python would report a missing script.
    fn withdraw(&self) {
        let PythonProcess { process, image } = self.target;
        if self.is_remote_exec() {
            let script = self.folder.starter_path();
            let _ = with_stopped_threads(process, || remote_exec::withdraw(process, image, script));
        }
    }
}
