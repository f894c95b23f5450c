//! Memory, files, threads and processor time of a process, and waits of a thread, from `/proc`.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a process uses at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Resident memory in bytes.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub files: u64,
    /// Threads.
    pub threads: u64,
    /// Processor time of all threads so far, in milliseconds.
    pub cpu_ms: u64,
}

impl ProcessUsage {
    /// Returns the usage of a process; none if it does not exist or the system has no `/proc`.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
        };
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        // The name may contain anything but its closing parenthesis comes last. Of the fields
        // behind it, the 12th and 13th are the times, in hundredths of a second.
        let times: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = times.get(11)?.parse::<u64>().ok()? + times.get(12)?.parse::<u64>().ok()?;
        Some(Self {
            resident_bytes: field("VmRSS")? * 1024,
            files: fs::read_dir(folder.join("fd")).ok()?.count() as u64,
            threads: field("Threads")?,
            cpu_ms: ticks * 10,
        })
    }

    /// Returns the processor time since `before`, in seconds for each of the `seconds` in between.
    #[must_use]
    pub fn cores_since(&self, before: &Self, seconds: f64) -> f64 {
        self.cpu_ms.saturating_sub(before.cpu_ms) as f64 / 1000.0 / seconds
    }
}

/// A stopwatch that tells a thread's waiting from its work.
#[derive(Clone, Debug)]
pub(crate) struct WaitTimer {
    start: Instant,
    scheduled: ScheduledTimes,
    stolen: Duration,
}

impl WaitTimer {
    /// Starts a stopwatch for this thread.
    #[must_use]
    pub(crate) fn start() -> Self {
        let (scheduled, stolen) = (ScheduledTimes::now(), stolen_time());
        Self { start: Instant::now(), scheduled, stolen }
    }

    /// Returns the time since the start, and for how much of it this thread waited for anything but
    /// a processor, to a few milliseconds. Without `/proc`, all time counts as waiting.
    ///
    /// A wait for a lock whose holder runs, or waits for a processor, is a wait for a processor.
    /// The holder is unknown, so the busiest other thread of this process counts as the holder.
    /// Time in which the host of a virtual machine took its processors is a wait for a processor,
    /// too.
    #[must_use]
    pub(crate) fn elapsed(&self) -> [Duration; 2] {
        let elapsed = self.start.elapsed();
        let scheduled = ScheduledTimes::now().since(&self.scheduled);
        let stolen = stolen_time().saturating_sub(self.stolen);
        [elapsed, scheduled.into_iter().chain([stolen]).fold(elapsed, Duration::saturating_sub)]
    }
}

/// For how long each thread of this process ran or was ready to run.
#[derive(Clone, Debug)]
struct ScheduledTimes {
    this: Duration,
    /// Of the other threads, by number.
    others: HashMap<OsString, Duration>,
}

impl ScheduledTimes {
    /// Returns the times so far; zero without `/proc`.
    fn now() -> Self {
        let others = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let mut others: HashMap<_, _> =
            others.map(|thread| (thread.file_name(), scheduled_time(&thread.path()))).collect();
        if let Some(number) = fs::read_link("/proc/thread-self").ok().as_deref().and_then(Path::file_name) {
            others.remove(number);
        }
        // Last: reading the others is work of this thread.
        Self { this: scheduled_time(Path::new("/proc/thread-self")), others }
    }

    /// Returns the time of this thread since `earlier`, and that of the busiest other thread.
    fn since(&self, earlier: &Self) -> [Duration; 2] {
        let others = self.others.iter().map(|(number, time)| {
            // A thread that has started since has only its own time.
            time.saturating_sub(earlier.others.get(number).copied().unwrap_or_default())
        });
        [self.this.saturating_sub(earlier.this), others.max().unwrap_or_default()]
    }
}

/// Returns for how long the host of this virtual machine gave its processors to others so far, to
/// 10 milliseconds. The times of threads do not include it.
fn stolen_time() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    // All processors together: "cpu", and the eighth number in hundredths of a second.
    let ticks = stat.split_whitespace().nth(8).and_then(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.unwrap_or_default())
}

/// Returns for how long a thread ran or was ready to run so far; zero if it has ended. `folder` is
/// its folder in `/proc`.
fn scheduled_time(folder: &Path) -> Duration {
    let stat = fs::read_to_string(folder.join("schedstat")).unwrap_or_default();
    // Nanoseconds that it ran, and that it waited for a processor.
    let times = stat.split_whitespace().take(2).filter_map(|time| time.parse().ok());
    times.map(Duration::from_nanos).sum()
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::{Barrier, Mutex};
    use std::{env, thread};

    use super::*;

    const PAUSE: Duration = Duration::from_millis(100);

    #[test]
    #[cfg(target_os = "linux")]
    fn work_is_not_a_wait() {
        let timer = WaitTimer::start();
        while timer.start.elapsed() < PAUSE {}
        let [total, waited] = timer.elapsed();
        assert!(total >= PAUSE && waited < PAUSE / 2, "{waited:?} of {total:?}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn lock_whose_holder_works_is_not_a_wait() {
        let (lock, is_held, is_measured) = (Mutex::new(()), Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let guard = lock.lock();
                is_held.wait();
                let start = Instant::now();
                while start.elapsed() < PAUSE {}
                drop(guard);
                // The time of a thread that has ended is unknown.
                is_measured.wait();
            });
            is_held.wait();
            let timer = WaitTimer::start();
            drop(lock.lock());
            let [total, waited] = timer.elapsed();
            is_measured.wait();
            assert!(waited < PAUSE / 2, "{waited:?} of {total:?}");
        });
    }

    #[test]
    #[ignore = "a process without other tests runs it: sleep_is_a_wait"]
    fn sleep_is_a_wait_in_a_quiet_process() {
        let timer = WaitTimer::start();
        // Long: the host may take the processors for a part of it.
        thread::sleep(5 * PAUSE);
        let [total, waited] = timer.elapsed();
        assert!(total >= 5 * PAUSE && waited > PAUSE, "{waited:?} of {total:?}");
    }

    #[test]
    fn sleep_is_a_wait() {
        let arguments = ["--exact", "process::tests::sleep_is_a_wait_in_a_quiet_process", "--ignored"];
        let output = Command::new(env::current_exe().expect("the path of this program"))
            .args(arguments)
            .output()
            .expect("this program runs again");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn usage_of_this_process_is_known() {
        let usage = ProcessUsage::of(std::process::id()).expect("this process exists");
        assert!(usage.resident_bytes > 100_000 && usage.files >= 3 && usage.threads >= 1, "{usage:?}");
        assert_eq!(ProcessUsage::of(u32::MAX), None);
    }
}
