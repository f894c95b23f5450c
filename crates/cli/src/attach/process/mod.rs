//! Runs a Python program in another process that runs Python.
//!
//! [`PythonProcess::run`] writes the program to a folder (`script`) and makes the interpreter of
//! the process start a thread that runs it. The thread writes its result to the folder. The request
//! to the interpreter depends on its version: `pending_calls` is for Python 3.10 to 3.13,
//! `remote_exec` for 3.14. Both write to the process's memory while its threads are stopped
//! (`stop`), for a few milliseconds; no code of the process is changed and no call is forced on a
//! thread.
//!
//! A request that is given up is withdrawn before the folder is deleted. Otherwise another user
//! could create a folder with that name, and the process would run the files in it.
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
#[cfg(test)]
mod two_users;

use std::thread;
use std::time::{Duration, Instant};

use crate::attach::wait::Wait;
use crate::error::{CommandError, Result};
use image::PythonImage;
use remote_exec::Threads;
use script::ScriptFolder;
use stop::{Attempt, StopError, with_stopped_threads};
use target::TargetProcess;

/// Timeout for passing a request to the interpreter, which another debugger or a busy thread may
/// delay.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for withdrawing a request.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the process is stopped again after a failed attempt.
const BUSY_DELAY: Duration = Duration::from_millis(50);
/// Interval at which the folder of the program is checked for the result.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time after which the request is repeated if the interpreter has not started the program. Doubled
/// after each repetition.
const FIRST_WAKE: Duration = Duration::from_secs(1);
/// Time without an answer after which the user gets a message.
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
        self.run_from(ScriptFolder::create(&self.process, code)?, wait)
    }

    /// Runs the program in `folder` and returns its result, as [`run`](Self::run) does.
    fn run_from(&self, folder: ScriptFolder, wait: &Wait<'_>) -> Result<String> {
        let mut request = Request::new(self, folder);
        let result = request.start(wait).and_then(|()| self.wait_for_result(&mut request, wait));
        let withdrawn = request.end(WITHDRAW_TIMEOUT);
        match (withdrawn, result) {
            (Ok(()), result) => result,
            (Err(advice), Ok(reply)) => {
                (wait.on_message)(&advice);
                Ok(reply)
            }
            (Err(advice), Err(error)) => Err(CommandError::new(format_args!("{error}; {advice}"))),
        }
    }

    /// Waits for the program's result.
    fn wait_for_result(&self, request: &mut Request<'_>, wait: &Wait<'_>) -> Result<String> {
        let started_at = Instant::now();
        let (mut next_wake, mut is_told) = (FIRST_WAKE, false);
        loop {
            if let Some(result) = request.folder.result()? {
                let pid = self.process.pid();
                return result.map_err(|reason| CommandError::new(format_args!("process {pid}: {reason}")));
            }
            let (elapsed, has_started) = (started_at.elapsed(), request.folder.has_started());
            if !self.process.is_running() {
                return Err(CommandError::new(format_args!("process {} has ended", self.process.pid())));
            }
            if (wait.is_cancelled)() {
                return Err(self.cancelled());
            }
            if elapsed >= wait.timeout {
                return Err(self.no_answer(elapsed, has_started));
            }
            if elapsed >= next_wake && !has_started {
                request.repeat();
                next_wake *= 2;
            }
            if elapsed >= SLOW && !std::mem::replace(&mut is_told, true) {
                let state = if has_started { "is still starting the recording" } else { "does not answer yet" };
                (wait.on_message)(&format!(
                    "process {} {state}: {}; waiting for at most {} s",
                    self.process.pid(),
                    self.slow_reason(has_started),
                    wait.timeout.as_secs()
                ));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Creates the error for a wait that was ended early.
    fn cancelled(&self) -> CommandError {
        CommandError::new(format_args!("interrupted before process {} answered", self.process.pid()))
    }

    /// Creates the error for a process that did not answer in time.
    fn no_answer(&self, elapsed: Duration, has_started: bool) -> CommandError {
        let pid = self.process.pid();
        let seconds = elapsed.as_secs();
        let reason = self.slow_reason(has_started);
        CommandError::new(format_args!(
            "process {pid} did not answer within {seconds} s: {reason}; try again or raise --timeout"
        ))
    }

    /// Returns the probable reason why the process answers late, as text for the user.
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
    folder: ScriptFolder,
    /// Addresses in the process of the texts that were queued (Python 3.10 to 3.13).
    texts: Vec<u64>,
    /// Number of requests that may have reached the interpreter.
    count: u32,
}

impl<'a> Request<'a> {
    /// Creates a request that has not been passed to the interpreter.
    fn new(target: &'a PythonProcess, folder: ScriptFolder) -> Self {
        Self { target, folder, texts: Vec::new(), count: 0 }
    }

    /// Returns true if the interpreter has the interface of `remote_exec`.
    fn is_remote_exec(&self) -> bool {
        self.target.image.version.minor >= 14
    }

    /// Passes the request to the interpreter.
    fn start(&mut self, wait: &Wait<'_>) -> Result {
        let deadline = Instant::now() + BUSY_TIMEOUT.min(wait.timeout);
        loop {
            match self.ask(Threads::Main) {
                Ok(()) => return Ok(()),
                Err(StopError::Failed(error)) => return Err(error),
                Err(StopError::Busy(reason)) if Instant::now() > deadline || (wait.is_cancelled)() => {
                    return Err(CommandError::new(reason));
                }
                Err(StopError::Busy(_)) => thread::sleep(BUSY_DELAY),
            }
        }
    }

    /// Asks the interpreter to start the program. On Python 3.14, asks the threads `threads`.
    fn ask(&mut self, threads: Threads) -> Attempt {
        let PythonProcess { process, image } = self.target;
        let is_first = self.count == 0;
        let attempt = if self.is_remote_exec() {
            let folder = &self.folder;
            with_stopped_threads(process, || remote_exec::request(process, image, folder, threads))
        } else {
            let (text, texts) = (self.folder.starter(), &mut self.texts);
            with_stopped_threads(process, || match is_first {
                true => pending_calls::enqueue(process, image, text, texts),
                false => pending_calls::repeat(process, image, text, texts),
            })
        };
        // A failed attempt may have written a part of the request; a busy process got nothing.
        if !matches!(attempt, Err(StopError::Busy(_))) {
            self.count += 1;
        }
        attempt
    }

    /// Repeats the request to an interpreter that has not started the program. Failures are
    /// ignored: the first request is still in effect.
    fn repeat(&mut self) {
        let _ = self.ask(Threads::All);
    }

    /// Ends the request within `timeout`: withdraws it from threads that have not carried it out,
    /// and deletes the folder once no thread can open a file in it. If that fails, keeps the
    /// folder, because another user could create a folder of its name, and returns a message for
    /// the user.
    fn end(mut self, timeout: Duration) -> std::result::Result<(), String> {
        // If the only request is answered, no thread has a request to withdraw.
        let is_answered = matches!(self.folder.result(), Ok(Some(_)));
        if self.count == 0 || is_answered && self.count == 1 {
            return Ok(());
        }
        self.folder.withdraw();
        let deadline = Instant::now() + timeout;
        self.withdraw_until(deadline).and_then(|()| self.wait_until_opened(deadline)).map_err(|reason| {
            self.folder.keep();
            format!(
                "the request to process {} could not be withdrawn: {reason}; leave the folder {} where it is until \
                 the process has ended",
                self.target.process.pid(),
                self.folder.path().display()
            )
        })
    }

    /// Withdraws the request from threads that have not carried it out; tries again until
    /// `deadline`. Returns the reason if it fails.
    fn withdraw_until(&self, deadline: Instant) -> std::result::Result<(), String> {
        loop {
            let reason = match self.withdraw() {
                Ok(()) => return Ok(()),
                Err(StopError::Busy(reason)) => reason,
                Err(StopError::Failed(error)) => error.to_string(),
            };
            if !self.target.is_running() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(reason);
            }
            thread::sleep(BUSY_DELAY);
        }
    }

    /// Withdraws the request from threads that have not carried it out.
    fn withdraw(&self) -> Attempt {
        let PythonProcess { process, image } = self.target;
        if self.is_remote_exec() {
            with_stopped_threads(process, || remote_exec::withdraw(process, image, &self.folder))
        } else {
            let (text, texts, withdrawal) = (self.folder.starter(), &self.texts, self.folder.withdrawal());
            with_stopped_threads(process, || pending_calls::withdraw(process, text, texts, withdrawal))
        }
    }

    /// Waits until each thread that took the request has opened the starter. Returns an error if a
    /// thread has not opened it by `deadline`. Does not stop the process. Up to Python 3.13, no
    /// thread takes a starter: threads only open the script, and check its owner and digest.
    fn wait_until_opened(&self, deadline: Instant) -> std::result::Result<(), String> {
        while !self.folder.is_opened_by_all() && self.target.is_running() {
            if Instant::now() > deadline {
                return Err("a thread of the process has not run the file start.py yet".to_owned());
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}
