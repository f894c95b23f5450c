//! What a process takes, as the operating system says.

use std::fs;
use std::path::PathBuf;

/// What a process takes at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Bytes of memory that it has, by pages.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub files: u64,
    /// Threads.
    pub threads: u64,
    /// Processor time of all of them so far.
    pub cpu_ms: u64,
}

impl Taken {
    /// By a process of this number; `None` where there is none, or the system says nothing of it.
    #[must_use]
    pub fn by(pid: u32) -> Option<Self> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let status = fs::read_to_string(folder.join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok()
        };
        let stat = fs::read_to_string(folder.join("stat")).ok()?;
        // Behind the name, which may hold anything: the times are the 12th and 13th of what follows, in hundredths of a second.
        let times: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks = times.get(11)?.parse::<u64>().ok()? + times.get(12)?.parse::<u64>().ok()?;
        Some(Self {
            resident_bytes: field("VmRSS")? * 1024,
            files: fs::read_dir(folder.join("fd")).ok()?.count() as u64,
            threads: field("Threads")?,
            cpu_ms: ticks * 10,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_takes_something() {
        let taken = Taken::by(std::process::id()).expect("it is running");
        assert!(taken.resident_bytes > 100_000 && taken.files >= 3 && taken.threads >= 1, "{taken:?}");
        assert_eq!(Taken::by(u32::MAX), None);
    }
}
