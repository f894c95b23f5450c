//! The process that pushes a recording: how it identifies itself to a hub that several processes
//! share.

use std::env;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::text::is_control;

/// Environment variables with a process's rank, set by torchrun, Slurm and Open MPI: first its
/// number among all processes, then among those on its machine. The first pair whose first variable
/// holds a number is used.
const RANK_VARIABLES: [(&str, &str); 3] =
    [("RANK", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_LOCALID"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")];
/// Maximum length of a program's or a host's name, in characters; the rest is cut off.
const MAX_NAME_CHARS: usize = 80;
/// Length of a recording's identity, in hexadecimal digits.
#[cfg(feature = "server")]
const IDENTITY_CHARS: usize = 32;

/// The numbers of a process in a distributed training run, among all processes and on its machine.
/// Unknown numbers are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rank {
    /// Number among all processes of the run.
    pub global: Option<u32>,
    /// Number among the run's processes on this machine.
    pub local: Option<u32>,
}

impl Rank {
    /// Reads the rank that torchrun, Slurm, Open MPI or Lightning set in the environment. Variables
    /// that hold no number are ignored.
    #[must_use]
    pub fn from_env() -> Self {
        Self::from_variables(|name| env::var(name).ok())
    }

    /// Reads the rank as [`from_env`](Self::from_env) does, but gets a variable's value from
    /// `variable(name)`.
    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| variable(name)?.trim().parse().ok();
        let found = RANK_VARIABLES.iter().find_map(|(global, local)| Some((number(global)?, number(local))));
        // The launcher of Lightning sets no RANK. On its first machine, both numbers are equal.
        let on_first = || (number("NODE_RANK")? == 0).then(|| number("LOCAL_RANK")).flatten();
        let found = found.or_else(|| on_first().map(|local| (local, Some(local))));
        found.map_or_else(Self::default, |(global, local)| Self { global: Some(global), local })
    }
}

/// The JSON message in which a process describes itself before it pushes its recording.
///
/// The recording's identity identifies the process: a restarted program counts as another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    /// Identity of the recording.
    #[serde(rename = "process")]
    pub identity: String,
    /// Name of the program.
    pub program: String,
    /// Process id.
    pub pid: u32,
    /// Global rank; see [`Rank::global`].
    pub rank: Option<u32>,
    /// Local rank; see [`Rank::local`].
    pub local_rank: Option<u32>,
    /// Name of the machine; empty if the process does not run on Linux.
    pub host: String,
    /// Time 0 of the recording's events, in nanoseconds since 1970; 0 if the receiver must read it
    /// from the recording's header.
    pub epoch_unix_ns: u64,
}

impl Process {
    /// Describes the running process. `identity` is the identity of its recording, `program` its
    /// name to show. If `is_redacted`, the program is not named, and the machine is named by a
    /// number, which is equal for all its processes.
    #[cfg(feature = "push")]
    #[must_use]
    pub fn this(identity: String, program: &str, rank: Rank, is_redacted: bool) -> Self {
        let (program, host) = match is_redacted {
            true => ("redacted".to_owned(), redacted_host(&host_name())),
            false => (plain(program), plain(&host_name())),
        };
        let (pid, Rank { global: rank, local: local_rank }) = (std::process::id(), rank);
        Self { identity, program, pid, rank, local_rank, host, epoch_unix_ns: 0 }
    }

    /// Parses the description that another process sent. Names become safe to show: one line, no
    /// control characters, limited length.
    ///
    /// # Errors
    /// If it is not JSON of this shape or has no valid identity.
    #[cfg(feature = "server")]
    pub fn parse(json: &str) -> Result<Self, String> {
        let process: Self = serde_json::from_str(json)
            .map_err(|error| format!("the description of the process is invalid: {error}"))?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if process.identity.len() != IDENTITY_CHARS || !process.identity.bytes().all(is_digit) {
            return Err(format!("`process` must be the recording's identity, {IDENTITY_CHARS} hexadecimal digits"));
        }
        Ok(Self { program: plain(&process.program), host: plain(&process.host), ..process })
    }

    /// Returns the name to show with the process's devices: `rank 3`, or program and process id if
    /// it has no rank.
    #[cfg(feature = "server")]
    pub(crate) fn short_name(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank}"),
            None => self.to_string(),
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = if self.program.is_empty() { "a program" } else { &self.program };
        write!(f, "{program}, process {}", self.pid)
    }
}

/// Returns the name of this machine; an empty string on systems other than Linux, or if the name
/// cannot be read.
#[cfg(feature = "push")]
fn host_name() -> String {
    #[cfg(target_os = "linux")]
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    #[cfg(not(target_os = "linux"))]
    let name = String::new();
    name
}

/// Returns a name for the machine `host` that does not contain it: a hash, which a viewer who
/// guesses the machine's name can confirm. Equal machines have equal names in processes with the
/// same version of vramscope.
#[cfg(feature = "push")]
fn redacted_host(host: &str) -> String {
    let mut hasher = std::hash::DefaultHasher::new();
    std::hash::Hash::hash(host, &mut hasher);
    format!("host_{:08x}", std::hash::Hasher::finish(&hasher) as u32)
}

/// Returns `name` without surrounding spaces, with control characters replaced by spaces, cut to
/// [`MAX_NAME_CHARS`].
pub(crate) fn plain(name: &str) -> String {
    name.trim().chars().map(|c| if is_control(c) { ' ' } else { c }).take(MAX_NAME_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_comes_from_the_first_launcher_found() {
        let check = |variables: &[(&str, &str)], global: Option<u32>, local: Option<u32>| {
            let get = |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string());
            assert_eq!(Rank::from_variables(get), Rank { global, local }, "{variables:?}");
        };
        check(&[], None, None);
        check(&[("RANK", "3"), ("LOCAL_RANK", "1"), ("SLURM_PROCID", "9")], Some(3), Some(1));
        check(&[("RANK", ""), ("SLURM_PROCID", "9")], Some(9), None);
        check(&[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "2")], Some(2), Some(2));
        check(&[("RANK", "many"), ("LOCAL_RANK", "1")], None, None);
        check(&[("LOCAL_RANK", "1")], None, None);
        check(&[("NODE_RANK", "0"), ("LOCAL_RANK", "1")], Some(1), Some(1));
        check(&[("NODE_RANK", "1"), ("LOCAL_RANK", "1")], None, None);
    }

    #[cfg(all(feature = "push", feature = "server"))]
    #[test]
    fn descriptions_are_validated_and_made_safe_to_show() {
        let identity = "0123456789abcdef0123456789abcdef".to_owned();
        let this = Process::this(identity, "train.py\n", Rank::default(), false);
        assert_eq!(
            Process::parse(&serde_json::to_string(&this).expect("strings and numbers serialize")),
            Ok(this.clone())
        );
        assert_eq!(this.program, "train.py");
        assert_eq!(this.host.is_empty(), !cfg!(target_os = "linux"), "{}", this.host);
        let identity = &this.identity;
        let json = format!(r#"{{"process": "{identity}", "program": "a\u001b[31m{}", "rank": 2}}"#, "b".repeat(1000));
        let parsed = Process::parse(&json).expect("a valid description");
        assert!(parsed.program.starts_with("a [31mb") && parsed.program.len() == MAX_NAME_CHARS, "{}", parsed.program);
        assert_eq!((parsed.short_name(), parsed.pid), ("rank 2".to_owned(), 0));
        for wrong in ["", "[]", "{}", r#"{"process": "x"}"#, r#"{"process": "0123456789ABCDEF0123456789abcdef"}"#] {
            assert!(Process::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Process::parse(&json.replace("2}", "-2}")).is_err());
        for odd in "\u{61c}\u{200e}\u{200f}\u{2028}\u{202a}\u{202e}\u{2066}\u{2069}\u{7f}\u{9b}\n".chars() {
            assert_eq!(plain(&format!("a{odd}b\u{e4}")), "a b\u{e4}", "{odd:?}");
        }
    }
}
