//! A process among several: what it says of itself when it pushes its recording, and what it is called.

use std::env;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The variables that say which of several processes this is, in the order in which they are believed: of torchrun, of Slurm and of
/// Open MPI; and with each the one that counts on this machine alone.
const RANKS: [(&str, &str); 3] =
    [("RANK", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_LOCALID"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")];
/// Characters of a program's and of a host's name that are kept.
const MAX_NAME_CHARS: usize = 80;
/// Characters of a recording's identity.
const IDENTITY_CHARS: usize = 32;

/// What a process says of itself. Its recording's identity is its own: a program that is started again is another process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Process {
    /// The identity of its recording.
    #[serde(rename = "process")]
    pub(crate) identity: String,
    /// The name of the program.
    pub(crate) program: String,
    /// Its number in the operating system.
    pub(crate) pid: u32,
    /// Its number among the processes of the training.
    pub(crate) rank: Option<u32>,
    /// Its number among those of this machine.
    pub(crate) local_rank: Option<u32>,
    /// The machine.
    pub(crate) host: String,
    /// Time 0 of its events, in nanoseconds since 1970; 0 where only the recording says so.
    pub(crate) epoch_unix_ns: u64,
}

impl Process {
    /// This process.
    pub(crate) fn this(identity: String, program: &str) -> Self {
        let (rank, local_rank) = ranks(|name| env::var(name).ok());
        let host = env::var("HOSTNAME").ok().or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
        let host = host.map(|host| plain(&host)).unwrap_or_default();
        let pid = std::process::id();
        Self { identity, program: plain(program), pid, rank, local_rank, host, epoch_unix_ns: 0 }
    }

    /// What a process said, fit to be shown.
    ///
    /// # Errors
    /// Where it does not say who it is.
    pub(crate) fn parse(json: &str) -> Result<Self, String> {
        let said: Self = serde_json::from_str(json).map_err(|error| format!("what it says of itself: {error}"))?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if said.identity.len() != IDENTITY_CHARS || !said.identity.bytes().all(is_digit) {
            return Err(format!("`process` is the recording's identity, {IDENTITY_CHARS} hexadecimal digits"));
        }
        Ok(Self { program: plain(&said.program), host: plain(&said.host), ..said })
    }

    /// What it is called among the others.
    pub(crate) fn short(&self) -> String {
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

/// A name as it may be shown: of printable characters that stand in the order in which they are seen, and not long.
pub(crate) fn plain(name: &str) -> String {
    name.trim().chars().map(|c| if is_control(c) { ' ' } else { c }).take(MAX_NAME_CHARS).collect()
}

/// Whether a letter does something to the text around it where it is shown: begins a line, moves the cursor, or turns the writing around.
#[must_use]
pub fn is_control(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns
}

/// The ranks that the environment names; a variable that holds no number is not believed.
fn ranks(variable: impl Fn(&str) -> Option<String>) -> (Option<u32>, Option<u32>) {
    let number = |name: &str| variable(name)?.trim().parse().ok();
    let found = RANKS.iter().find_map(|(rank, local)| Some((number(rank)?, number(local))));
    found.map_or((None, None), |(rank, local)| (Some(rank), local))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_says_the_rank() {
        let check = |variables: &[(&str, &str)], expected: (Option<u32>, Option<u32>)| {
            let get = |name: &str| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| value.to_string());
            assert_eq!(ranks(get), expected, "{variables:?}");
        };
        check(&[], (None, None));
        check(&[("RANK", "3"), ("LOCAL_RANK", "1"), ("SLURM_PROCID", "9")], (Some(3), Some(1)));
        check(&[("RANK", ""), ("SLURM_PROCID", "9")], (Some(9), None));
        check(&[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "2")], (Some(2), Some(2)));
        check(&[("RANK", "many"), ("LOCAL_RANK", "1")], (None, None));
        check(&[("LOCAL_RANK", "1")], (None, None));
    }

    #[test]
    fn what_a_process_says_is_checked_and_fit_to_be_shown() {
        let this = Process::this("0123456789abcdef0123456789abcdef".to_owned(), "train.py\n");
        assert_eq!(Process::parse(&serde_json::to_string(&this).expect("JSON")), Ok(this.clone()));
        assert_eq!(this.program, "train.py");
        let identity = &this.identity;
        let said = format!(r#"{{"process": "{identity}", "program": "a\u001b[31m{}", "rank": 2}}"#, "b".repeat(1000));
        let parsed = Process::parse(&said).expect("a process");
        assert!(parsed.program.starts_with("a [31mb") && parsed.program.len() == MAX_NAME_CHARS, "{}", parsed.program);
        assert_eq!((parsed.short(), parsed.pid), ("rank 2".to_owned(), 0));
        for wrong in ["", "[]", "{}", r#"{"process": "x"}"#, r#"{"process": "0123456789ABCDEF0123456789abcdef"}"#] {
            assert!(Process::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Process::parse(&said.replace("2}", "-2}")).is_err());
        for odd in "\u{61c}\u{200e}\u{200f}\u{2028}\u{202a}\u{202e}\u{2066}\u{2069}\u{7f}\u{9b}\n".chars() {
            assert_eq!(plain(&format!("a{odd}b\u{e4}")), "a b\u{e4}", "{odd:?}");
        }
    }
}
