//! Ends a session without waiting for ever.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

/// Longest time without progress before the end of a session is given up. A file that cannot be
/// written ends earlier: after 10 s, or a minute if the disk is syncing.
pub(super) const END_PATIENCE: Duration = Duration::from_secs(90);

/// Runs `work` on a thread of its own and returns its result. `progress` returns a number that
/// changes as long as the thread does something.
///
/// # Errors
/// If the progress number stays the same for `patience`, or `work` panics. The thread is not
/// joined: a disk that hangs may keep it for ever.
pub(super) fn run_with_patience<R: Send + 'static>(
    patience: Duration,
    progress: impl Fn() -> u64,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, String> {
    let (finished, result) = sync_channel(1);
    let thread = Builder::new().name("vramscope-end".into()).spawn(move || {
        // An error means that the caller has given up.
        let _ = finished.send(work());
    });
    thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    loop {
        let before = progress();
        match result.recv_timeout(patience) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) if progress() != before => {}
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!("nothing could be written for {:.0} s", patience.as_secs_f64()));
            }
            Err(RecvTimeoutError::Disconnected) => return Err("internal error, please report it".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;

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
        // Every look finds progress; the work ends after many of them.
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
    fn panic_is_an_error() {
        let work = || -> u32 { panic!("a panic of the test") };
        let error = run_with_patience(Duration::from_secs(60), || 0, work).expect_err("it panics");
        assert!(error.contains("internal error"), "{error}");
    }
}
