//! Ends a session without waiting forever for a disk.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Builder;
use std::time::Duration;

use crate::detached_work::{DetachedWork, NoResult, NotStarted};

/// Longest time without progress after which the program no longer waits for a session's end. A
/// file that cannot be written fails earlier: after 10 s, or after a minute if the disk is syncing.
pub(super) const END_PATIENCE: Duration = Duration::from_secs(90);

/// Runs `work` on its own thread and returns the result. `progress` returns a number that changes
/// as long as the thread makes progress.
///
/// If no thread can be started, `work` runs on the caller's thread. It then ends even if the disk
/// hangs, because the recording's file fails by itself.
///
/// # Errors
/// If the progress number stays the same for `patience`, or `work` panics. The thread is not
/// joined: a disk that hangs may keep it for ever.
pub(super) fn run_with_patience<R: Send + 'static>(
    patience: Duration,
    progress: impl Fn() -> u64,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, String> {
    run_on_thread(Builder::new(), patience, progress, work)
}

/// [Runs](run_with_patience) `work` on a thread that `builder` starts.
fn run_on_thread<R: Send + 'static>(
    builder: Builder,
    patience: Duration,
    progress: impl Fn() -> u64,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, String> {
    let result = match DetachedWork::start(builder.name("vramscope-end".into()), work) {
        Ok(running) => running.wait(patience, progress),
        Err(NotStarted { work, .. }) => catch_unwind(AssertUnwindSafe(work)).map_err(|_| NoResult::Panicked),
    };
    result.map_err(|error| match error {
        NoResult::TimedOut => format!("nothing could be written for {:.0} s", patience.as_secs_f64()),
        NoResult::Panicked => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(10);

    #[test]
    fn work_without_progress_is_given_up() {
        let (finish, wait) = channel::<()>();
        let error = run_with_patience(PATIENCE, || 7, move || wait.recv()).expect_err("the work waits for the test");
        assert_eq!(error, "nothing could be written for 0 s");
        drop(finish);
    }

    #[test]
    fn work_that_makes_progress_is_waited_for() {
        let (finish, wait) = channel();
        let seen = AtomicU64::new(0);
        // Every check finds progress; the work ends after many checks.
        let progress = || {
            let seen = seen.fetch_add(1, Ordering::Relaxed);
            if seen == 20 {
                finish.send("done").expect("the work waits");
            }
            seen
        };
        assert_eq!(run_with_patience(PATIENCE, progress, move || wait.recv()), Ok(Ok("done")));
    }

    #[test]
    fn caller_runs_the_work_if_no_thread_can_be_started() {
        // A thread with this stack size cannot be started.
        let run = |work: fn() -> thread::ThreadId| {
            run_on_thread(Builder::new().stack_size(1 << 60), Duration::from_secs(60), || 0, work)
        };
        assert_eq!(run(|| thread::current().id()), Ok(thread::current().id()));
        assert_eq!(run(|| panic!("a panic of the test")), Err("internal error, please report it".to_owned()));
    }

    #[test]
    fn panic_is_an_error() {
        let work = || -> u32 { panic!("a panic of the test") };
        let error = run_with_patience(Duration::from_secs(60), || 0, work).expect_err("it panics");
        assert!(error.contains("internal error"), "{error}");
    }
}
