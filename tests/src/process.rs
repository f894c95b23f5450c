//! Memory, files, threads and processor time of a process, from `/proc`.

use std::fs;
use std::path::PathBuf;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn usage_of_this_process_is_known() {
        let usage = ProcessUsage::of(std::process::id()).expect("this process exists");
        assert!(usage.resident_bytes > 100_000 && usage.files >= 3 && usage.threads >= 1, "{usage:?}");
        assert_eq!(ProcessUsage::of(u32::MAX), None);
    }
}
