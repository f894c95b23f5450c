//! Recognizes and reads a recording while its bytes arrive, and names saved files.

use serde::{Deserialize, Serialize};
use vramscope_trace::{FormatError, MAGIC, Recording};

/// File name extensions that are removed before `.vram` is appended to a saved recording's name.
const EXTENSIONS: [&str; 8] = [".vram", ".html", ".pickle", ".pkl", ".json", ".csv", ".gz", ".zst"];
/// Maximum size of a recording, in bytes, that is read completely even if it has an index: counters
/// over time are then exact, and nothing is fetched later. A million events take the page 0.15 s;
/// twice as many would be noticeable.
pub const READ_WHOLE_UP_TO: u64 = 1 << 20;
/// Longest saved file name without its extension, in characters; a longer name is cut.
const MAX_NAME_CHARS: usize = 100;

/// The reason why a file cannot be shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// There are no bytes.
    #[error("the file is empty; save or copy it again")]
    Empty,
    /// The file has another format, or is compressed.
    #[error("not a vramscope recording; convert it with `vramscope import`")]
    NotARecording,
    /// The recording is damaged before its first event.
    #[error(transparent)]
    Damaged(#[from] FormatError),
}

/// A loader of a recording whose bytes arrive in pieces. It reads up to the first error.
#[derive(Default)]
pub struct RecordingLoader {
    /// The first bytes, as long as they are too few to recognize a recording.
    head: Vec<u8>,
    recording: Option<Box<Recording>>,
    error: Option<LoadError>,
}

/// A recording that was read from a file, and the error that ended reading, if there was one.
#[derive(Debug)]
pub struct LoadedFile {
    /// The recording, up to the error if there is one.
    pub recording: Recording,
    /// The error in the file, with its position.
    pub warning: Option<String>,
}

impl From<Recording> for LoadedFile {
    fn from(recording: Recording) -> Self {
        Self { recording, warning: None }
    }
}

/// Returns true if `bytes`, the start of a file, begin with an uncompressed recording's magic
/// number: only an uncompressed recording may have an index and be read in parts. False for too few
/// bytes.
pub fn is_recording(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// Returns the file name under which to save everything recorded so far of a running program: its
/// name, the time (UTC) of the last event and the number of events, as in
/// `train.py 20261231T235959Z 12345 events.vram`. The time is omitted if it is not known.
pub fn live_name(program: &str, recording: &Recording) -> String {
    let events = recording.end_event();
    let epoch_ns = recording.info().epoch_unix_ns;
    let last_s = epoch_ns.saturating_add(recording.end_ns()) / 1_000_000_000;
    let time = if epoch_ns > 0 { format!(" {}", utc_time(last_s)) } else { String::new() };
    let stem = saved_name(program);
    let stem = stem.strip_suffix(EXTENSIONS[0]).unwrap_or(&stem);
    format!("{stem}{time} {events} event{}{}", if events == 1 { "" } else { "s" }, EXTENSIONS[0])
}

/// Formats a Unix time in seconds in UTC as `20261231T235959Z`.
fn utc_time(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // The calendar repeats every 400 years; years begin in March, so that leap days are the last.
    let days = days + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = cycle * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
}

/// The format of a file in which the whole recording is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SaveFormat {
    /// A recording.
    Recording,
    /// The page with the recording in it.
    Html,
    /// A pickled PyTorch snapshot, for `memory_viz`.
    Snapshot,
}

/// Returns the file name under which to save the recording of `source`, a file or a program:
/// `run.vram` for `run.pickle.gz`.
pub fn saved_name(source: &str) -> String {
    let mut stem = source.trim();
    while let Some(shorter) = EXTENSIONS.iter().find_map(|extension| stem.strip_suffix(extension)) {
        stem = shorter;
    }
    let replace = |c: char| if c.is_control() || r#"/\:*?"<>|"#.contains(c) { '_' } else { c };
    let stem: String = stem.chars().take(MAX_NAME_CHARS).map(replace).collect();
    let stem = stem.trim_matches(['.', ' ']);
    format!("{}.vram", if stem.is_empty() { "recording" } else { stem })
}

/// Returns the file name under which to save the recording of `source` as a PyTorch snapshot:
/// `run.pickle`.
pub fn snapshot_name(source: &str) -> String {
    format!("{}.pickle", saved_name(source).trim_end_matches(EXTENSIONS[0]))
}

/// Returns the file name under which to save a part of the recording of `source`, or all of it
/// without names: `run events 1200-3400.vram`, `run redacted.vram`. `events` are the part's first
/// and last event number.
pub fn excerpt_name(source: &str, events: Option<(u64, u64)>, is_redacted: bool) -> String {
    let mut name = saved_name(source).trim_end_matches(EXTENSIONS[0]).to_owned();
    if let Some((from, to)) = events {
        name += &format!(" events {from}-{to}");
    }
    if is_redacted {
        name += " redacted";
    }
    name + EXTENSIONS[0]
}

impl RecordingLoader {
    /// Adds the next bytes of the file; ignores them after an error.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.error.is_some() {
            return;
        }
        if let Some(recording) = &mut self.recording {
            self.error = recording.push(bytes).err().map(LoadError::Damaged);
            return;
        }
        self.head.extend_from_slice(bytes);
        if is_recording(&self.head) {
            self.recording = Some(Box::default());
            let head = std::mem::take(&mut self.head);
            self.push(&head);
        } else if !MAGIC.starts_with(&self.head) {
            self.error = Some(LoadError::NotARecording);
        }
    }

    /// Returns true if the bytes so far are not the start of a recording.
    pub fn is_other_format(&self) -> bool {
        self.error == Some(LoadError::NotARecording)
    }

    /// Returns the recording after the file's last byte. An error in it becomes a warning if events
    /// precede it.
    ///
    /// # Errors
    /// If the file is no recording, or damaged before its first event; the error says at which
    /// byte.
    pub fn finish(self) -> Result<LoadedFile, LoadError> {
        let Some(recording) = self.recording else {
            return Err(if self.head.is_empty() && self.error.is_none() {
                LoadError::Empty
            } else {
                self.error.unwrap_or(LoadError::NotARecording)
            });
        };
        match self.error.or_else(|| recording.finish().err().map(LoadError::Damaged)) {
            Some(error) if recording.end_event() == recording.first_event() => Err(error),
            error => {
                let warning = error.map(|error| error.to_string());
                Ok(LoadedFile { recording: *recording, warning })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::{Encoder, Recording, RecordingInfo};

    use super::{excerpt_name, live_name, saved_name, utc_time};

    #[test]
    fn names_of_excerpts_say_what_the_file_contains() {
        let check = |events, is_redacted, expected: &str| {
            assert_eq!(excerpt_name("a/gpt_varlen.pickle.zst", events, is_redacted), expected);
        };
        check(Some((1200, 3400)), false, "a_gpt_varlen events 1200-3400.vram");
        check(None, true, "a_gpt_varlen redacted.vram");
        check(Some((0, 7)), true, "a_gpt_varlen events 0-7 redacted.vram");
        check(None, false, "a_gpt_varlen.vram");
    }

    #[test]
    fn live_names_state_program_time_and_events() {
        let recording = |epoch_unix_ns: u64| {
            let mut encoder = Encoder::new(&RecordingInfo { epoch_unix_ns, ..RecordingInfo::default() });
            encoder.flush();
            let mut recording = Recording::new();
            for chunk in encoder.take_output() {
                recording.push(&chunk.bytes).expect("a valid recording");
            }
            recording
        };
        assert_eq!(live_name("train.py", &recording(0)), "train.py 0 events.vram");
        let timed = recording(1_798_761_599_000_000_000);
        assert_eq!(live_name("a/b.vram", &timed), "a_b 20261231T235959Z 0 events.vram");
        for (unix_s, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (4_107_542_399, "21000228T235959Z"),
        ] {
            assert_eq!(utc_time(unix_s), text);
        }
    }

    #[test]
    fn saved_names_are_valid_file_names() {
        let check = |source: &str, expected: &str| assert_eq!(saved_name(source), expected);
        check("gpt.pickle.zst", "gpt.vram");
        check("run.3.vram", "run.3.vram");
        check("run.html", "run.vram");
        check("", "recording.vram");
        check(".vram", "recording.vram");
        check("../../etc/passwd", "_.._etc_passwd.vram");
        check("python train.py <img>", "python train.py _img_.vram");
        check(&"é".repeat(300), &format!("{}.vram", "é".repeat(100)));
    }
}
