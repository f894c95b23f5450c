//! The names of a run's streams and subjects at the broker.
//!
//! All subjects of the run `RUN` begin with `vramscope.RUN.`, so that a broker's permissions can
//! name them. The subjects of a process contain its rank and its identity:
//! `vramscope.RUN.events.RANK.IDENTITY`; a process without a rank has `none` instead. A broker can
//! therefore limit a process's user to one rank. The last digits of an identity are the rank, so a
//! user of another rank cannot publish messages that readers assign to this process.

/// Maximum length of a run's name, in characters.
pub const MAX_RUN_CHARS: usize = 64;
/// The part of a subject in place of the rank, for a process without a rank.
const NO_RANK: &str = "none";

/// The number of hexadecimal digits of an identity that are its process's rank.
const RANK_DIGITS: usize = 8;
/// The number in an identity in place of the rank, for a process without a rank.
const NO_RANK_NUMBER: u32 = u32::MAX;

/// Returns true if `name` can name a run: 1 to 64 ASCII letters, digits, `-` and `_`.
///
/// These characters have no special meaning in stream names and subjects.
#[must_use]
pub fn is_run_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=MAX_RUN_CHARS).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// Returns the names of all streams of a run.
#[must_use]
pub fn streams(run: &str) -> [String; 3] {
    [events_stream(run), summaries_stream(run), processes_stream(run)]
}

/// Returns the name of the stream of chunks.
#[must_use]
pub fn events_stream(run: &str) -> String {
    format!("vramscope-{run}-events")
}

/// Returns the name of the stream of process descriptions.
#[must_use]
pub fn processes_stream(run: &str) -> String {
    format!("vramscope-{run}-processes")
}

/// Returns the name of the stream of summaries.
#[must_use]
pub fn summaries_stream(run: &str) -> String {
    format!("vramscope-{run}-summaries")
}

/// Returns the subject of the summaries that a process sends.
#[must_use]
pub fn summaries(run: &str, rank: Option<u32>, identity: &str) -> String {
    format!("vramscope.{run}.summaries.{}", process_token(rank, identity))
}

/// Returns the pattern of all subjects of the stream of summaries.
#[must_use]
pub fn all_summaries(run: &str) -> String {
    format!("vramscope.{run}.summaries.>")
}

/// Returns the subject of a process's chunks.
#[must_use]
pub fn events(run: &str, rank: Option<u32>, identity: &str) -> String {
    format!("vramscope.{run}.events.{}", process_token(rank, identity))
}

/// Returns the subject of a process's description.
#[must_use]
pub fn process(run: &str, rank: Option<u32>, identity: &str) -> String {
    format!("vramscope.{run}.processes.{}", process_token(rank, identity))
}

/// Returns the pattern of all subjects of the stream of chunks.
#[must_use]
pub fn all_events(run: &str) -> String {
    format!("vramscope.{run}.events.>")
}

/// Returns the pattern of all subjects of the stream of process descriptions.
#[must_use]
pub fn all_processes(run: &str) -> String {
    format!("vramscope.{run}.processes.>")
}

/// Returns the subject on which servers request a process's events.
#[must_use]
pub fn control(run: &str, rank: Option<u32>, identity: &str) -> String {
    format!("vramscope.{run}.control.{}", process_token(rank, identity))
}

/// Returns the pattern of all subjects on which servers request the events of processes.
#[must_use]
pub fn all_controls(run: &str) -> String {
    format!("vramscope.{run}.control.>")
}

/// Returns the rank and the identity in a subject of a process; `None` if the subject has another
/// form.
#[must_use]
pub fn parse_process(subject: &str) -> Option<(Option<u32>, &str)> {
    let mut tokens = subject.split('.').skip(3);
    let (rank, identity) = (tokens.next()?, tokens.next()?);
    let rank = if rank == NO_RANK { None } else { Some(rank.parse().ok()?) };
    let is_valid = tokens.next().is_none() && identity.ends_with(&rank_digits(rank));
    is_valid.then_some((rank, identity))
}

/// Returns the identity of the process with this rank whose recording has the identity `recording`
/// (32 hexadecimal digits): the recording's identity with its last digits replaced by the rank.
#[must_use]
pub fn process_identity(recording: &str, rank: Option<u32>) -> String {
    let kept = recording.len().saturating_sub(RANK_DIGITS);
    format!("{}{}", recording.get(..kept).unwrap_or_default(), rank_digits(rank))
}

/// Returns the last digits of the identities of processes with this rank.
fn rank_digits(rank: Option<u32>) -> String {
    format!("{:0RANK_DIGITS$x}", rank.unwrap_or(NO_RANK_NUMBER))
}

/// Returns the last part of a process's subjects, `RANK.IDENTITY`.
fn process_token(rank: Option<u32>, identity: &str) -> String {
    format!("{}.{identity}", rank_name(rank))
}

/// Returns a rank as text for names of subjects and files: its number, or `none`.
pub(crate) fn rank_name(rank: Option<u32>) -> String {
    rank.map_or_else(|| NO_RANK.to_owned(), |rank| rank.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_names_have_no_special_characters() {
        for name in ["a", "run-1_B", &"r".repeat(MAX_RUN_CHARS)] {
            assert!(is_run_name(name), "{name}");
        }
        for name in ["", "a.b", "a*", ">", "a b", "a/b", "ü", "..", &"r".repeat(MAX_RUN_CHARS + 1)] {
            assert!(!is_run_name(name), "{name}");
        }
    }

    #[test]
    fn subject_has_rank_and_identity() {
        let recording = "0123456789abcdef0123456789abcdef";
        for (rank, digits) in [(None, "ffffffff"), (Some(0), "00000000"), (Some(4095), "00000fff")] {
            let identity = &*process_identity(recording, rank);
            assert_eq!(identity, format!("0123456789abcdef01234567{digits}"));
            assert_eq!(parse_process(&events("run", rank, identity)), Some((rank, identity)));
            assert_eq!(parse_process(&process("run", rank, identity)), Some((rank, identity)));
            assert_eq!(parse_process(&events("run", Some(7), identity)), None, "another rank");
        }
        for subject in ["", "vramscope.run.events", "vramscope.run.events.3", "vramscope.run.events.x.y", "a.b.c.3.x.y"]
        {
            assert_eq!(parse_process(subject), None, "{subject}");
        }
    }
}
