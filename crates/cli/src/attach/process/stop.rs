//! Stops all threads of a process while a function runs.
//!
//! A thread of this command becomes the tracer of each thread of the process and interrupts it.
//! When the tracer ends in any way, the kernel releases the threads: each continues where it was
//! and still receives its pending signals. Therefore the process continues even if this command is
//! killed.

use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::unistd::Pid;

use super::target::TargetProcess;
use crate::error::CommandError;

/// Timeout for stopping all threads. If it expires, the threads are released and the attempt fails.
const STOP_TIMEOUT: Duration = Duration::from_millis(200);
/// Interval at which the states of the threads are checked.
const STOP_POLL_INTERVAL: Duration = Duration::from_micros(100);

/// The reason why an attempt on a stopped process failed.
pub(super) enum StopError {
    /// A later attempt may succeed: a thread did not stop in time, or another process traces this
    /// one.
    Busy(String),
    /// A later attempt will fail, too.
    Failed(CommandError),
}

impl From<CommandError> for StopError {
    fn from(error: CommandError) -> Self {
        Self::Failed(error)
    }
}

/// The result of an attempt to access a process while its threads are stopped.
pub(super) type Attempt<T = ()> = std::result::Result<T, StopError>;

/// Calls `f` while all threads of the process are stopped, and then lets them continue.
pub(super) fn with_stopped_threads<R: Send>(
    process: &TargetProcess,
    f: impl FnOnce() -> Attempt<R> + Send,
) -> Attempt<R> {
    let traced = || {
        stop_threads(process)?;
        f()
        // The kernel releases the threads when this thread, their tracer, ends.
    };
    thread::scope(|scope| {
        let tracer = thread::Builder::new().name("vramscope-trace".into()).spawn_scoped(scope, traced);
        let tracer =
            tracer.map_err(|error| CommandError::new(format_args!("cannot start a thread to attach with: {error}")))?;
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Becomes the tracer of all threads of the process, and waits until each has stopped.
fn stop_threads(process: &TargetProcess) -> Attempt {
    let deadline = Instant::now() + STOP_TIMEOUT;
    let mut traced: Vec<Pid> = Vec::new();
    loop {
        let mut is_complete = true;
        let threads = process.threads();
        for &(thread, state) in &threads {
            // A thread that has ended runs no code.
            if matches!(state, 'Z' | 'X') {
                continue;
            }
            if !traced.contains(&thread) {
                is_complete = false;
                if trace(process, thread)? {
                    traced.push(thread);
                }
            } else if !is_stopped(state) {
                is_complete = false;
            }
        }
        if threads.is_empty() || !process.is_running() {
            let message = format!("process {} has ended", process.pid());
            return Err(CommandError::new(message).into());
        }
        // A thread that was created in the meantime is seen by the next pass.
        if is_complete {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(StopError::Busy(format!("a thread of process {} does not stop", process.pid())));
        }
        thread::sleep(STOP_POLL_INTERVAL);
    }
}

/// Returns true if an interrupted thread in this state runs no code of its program. A thread in an
/// uninterruptible call of the kernel (`D`) stops before it returns from the kernel.
fn is_stopped(state: char) -> bool {
    matches!(state, 't' | 'D' | 'Z' | 'X')
}

/// Becomes the tracer of a thread and interrupts it. Returns false if the thread has ended.
fn trace(process: &TargetProcess, thread: Pid) -> Attempt<bool> {
    let traced = ptrace::seize(thread, ptrace::Options::empty()).and_then(|()| ptrace::interrupt(thread));
    match traced {
        Ok(()) => Ok(true),
        Err(Errno::ESRCH) => Ok(false),
        Err(error) => {
            let state = process.threads().into_iter().find(|(id, _)| *id == thread);
            if state.is_none_or(|(_, state)| matches!(state, 'Z' | 'X')) {
                return Ok(false);
            }
            Err(match (error, process.tracer()) {
                (Errno::EPERM, Some(tracer)) => StopError::Busy(format!(
                    "process {tracer} traces process {}, as a debugger does: end it first",
                    process.pid()
                )),
                // Reading the memory was permitted, so another process may have begun to trace it.
                (Errno::EPERM, None) => StopError::Busy(process.permission_error().to_string()),
                (error, _) => StopError::Failed(CommandError::new(format_args!(
                    "cannot stop process {}: {}",
                    process.pid(),
                    error.desc()
                ))),
            })
        }
    }
}
