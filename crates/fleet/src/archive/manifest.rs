//! The manifest, which lists an archive's objects, and checks of a manifest that was read.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use vramscope_collector::is_control;

use super::error::ArchiveError;
use super::layout::{MAX_NUMBER, Table, is_identity, parse_recording_part};
use crate::subjects;

/// Version of the manifest's format and of the layout of object names.
const VERSION: u32 = 1;
/// Maximum size of a manifest that is read, in bytes: that of 64 ranks after a month.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 128 << 20;
/// Maximum size of an object that a manifest may list, in bytes.
pub(crate) const MAX_OBJECT_BYTES: u64 = 1 << 30;
/// Maximum length of a machine's or program's name, in characters.
const MAX_TEXT_CHARS: usize = 80;
/// Length of a SHA-256 hash, in hexadecimal digits.
const HASH_CHARS: usize = 64;

/// An object of an archive: its name, size, hash, and the times of its content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectEntry {
    /// Name of the object in the archive.
    pub name: String,
    /// Size of the object in bytes.
    pub bytes: u64,
    /// SHA-256 hash of the object's bytes, in hexadecimal digits.
    pub sha256: String,
    /// When the object's content begins, in milliseconds since 1970.
    pub start_unix_ms: u64,
    /// When the object's content ends, in milliseconds since 1970.
    pub end_unix_ms: u64,
}

/// A part of a process's recording, which can be opened as a recording without the other parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordingPartEntry {
    /// The object.
    #[serde(flatten)]
    pub object: ObjectEntry,
    /// The moment at which the part begins: the number of events before it.
    pub first_event: u64,
    /// The moment at which the part ends: the number of its last event.
    pub end_event: u64,
    /// Number of events in the part.
    pub events: u64,
    /// Number of events that are missing in the part.
    pub lost_events: u64,
    /// The moment of the part's first full state; `None` if memory was empty at the part's start.
    pub first_state: Option<u64>,
}

/// A process and the parts of its recording, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEntry {
    /// Rank of the process among all processes; `None` if it has none.
    pub rank: Option<u32>,
    /// Identity of the process.
    pub identity: String,
    /// Name of the process's machine.
    pub host: String,
    /// Name of the process's program.
    pub program: String,
    /// The parts of the recording, in order.
    pub parts: Vec<RecordingPartEntry>,
}

/// A part of a table: a Parquet file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TablePartEntry {
    /// The object. Its times are the times of the first and the last row.
    #[serde(flatten)]
    pub object: ObjectEntry,
    /// Number of rows in the part.
    pub rows: u64,
}

/// The content of `manifest.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) version: u32,
    /// The name of the run.
    pub(crate) run: String,
    /// When the archive was created, in milliseconds since 1970.
    pub(crate) created_unix_ms: u64,
    /// A random number of the server that wrote the manifest, so that manifests of two servers
    /// always differ.
    pub(crate) writer: u64,
    pub(crate) ranks: Vec<RankEntry>,
    pub(crate) rollups: Vec<TablePartEntry>,
    pub(crate) sites: Vec<TablePartEntry>,
}

impl Manifest {
    /// Creates an empty manifest.
    pub(crate) fn new(run: &str, created_unix_ms: u64) -> Self {
        Self { version: VERSION, run: run.to_owned(), created_unix_ms, ..Self::default() }
    }

    /// Returns the manifest as JSON.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers always serialize")
    }

    /// Parses and checks a manifest.
    ///
    /// # Errors
    /// If it is not a manifest of this version, or lists an object twice, under a name that the
    /// layout does not have, or with an impossible size.
    pub(crate) fn parse(json: &[u8]) -> Result<Self, ArchiveError> {
        let manifest: Self = serde_json::from_slice(json).map_err(|error| ArchiveError::Manifest(error.to_string()))?;
        manifest.check().map_err(ArchiveError::Manifest)?;
        Ok(manifest)
    }

    /// Returns the parts of a table.
    pub(crate) fn parts(&self, table: Table) -> &[TablePartEntry] {
        match table {
            Table::Rollups => &self.rollups,
            Table::Sites => &self.sites,
        }
    }

    /// Returns the parts of a table mutably.
    pub(crate) fn parts_mut(&mut self, table: Table) -> &mut Vec<TablePartEntry> {
        match table {
            Table::Rollups => &mut self.rollups,
            Table::Sites => &mut self.sites,
        }
    }

    /// Checks the manifest's version, texts and objects. The error says what is invalid.
    fn check(&self) -> Result<(), String> {
        let version = self.version;
        if version != VERSION {
            let other = format!("it has version {version}, this vramscope reads version {VERSION}");
            return Err(format!("{other}: use a newer vramscope"));
        }
        if !subjects::is_run_name(&self.run) {
            return Err("the name of the run is invalid".to_owned());
        }
        let mut names = BTreeSet::new();
        let mut identities = BTreeSet::new();
        for rank in &self.ranks {
            if !is_identity(&rank.identity) || !identities.insert(&rank.identity) {
                return Err("the identity of a process is invalid or repeated".to_owned());
            }
            if [&rank.host, &rank.program].into_iter().any(|text| !is_plain(text)) {
                return Err(format!("a name of the process {} is too long or has control characters", rank.identity));
            }
            for part in &rank.parts {
                check_recording_part(rank, part)?;
                check_object(&part.object, &mut names)?;
            }
        }
        for table in Table::ALL {
            for part in self.parts(table) {
                table.parse_part(&part.object.name).ok_or_else(|| invalid_name(&part.object.name))?;
                check_object(&part.object, &mut names)?;
            }
        }
        Ok(())
    }
}

/// Returns true if a text has at most [`MAX_TEXT_CHARS`] characters and none that changes the text
/// around it, such as control characters.
fn is_plain(text: &str) -> bool {
    text.chars().count() <= MAX_TEXT_CHARS && !text.chars().any(is_control)
}

/// Returns the error message for an invalid object name, which it quotes cut off and escaped.
fn invalid_name(name: &str) -> String {
    let shown: String = name.chars().take(MAX_TEXT_CHARS).collect();
    format!("the name {shown:?} is not that of an object of an archive")
}

/// Checks the name and the event numbers of a part of a process's recording.
fn check_recording_part(rank: &RankEntry, part: &RecordingPartEntry) -> Result<(), String> {
    let name = &part.object.name;
    let number = parse_recording_part(rank.rank, &rank.identity, name).ok_or_else(|| invalid_name(name))?;
    let moments = part.first_event..=part.end_event;
    let has_valid_moments = part.first_event.checked_add(part.events).is_some_and(|end| moments.contains(&end))
        && part.first_state.is_none_or(|state| moments.contains(&state));
    if number == 0 || number > MAX_NUMBER || !has_valid_moments {
        return Err(format!("{name} has impossible event numbers"));
    }
    Ok(())
}

/// Checks the size, hash and times of an object, and that its name is not in `names`, to which it
/// is added.
fn check_object<'a>(object: &'a ObjectEntry, names: &mut BTreeSet<&'a str>) -> Result<(), String> {
    let ObjectEntry { name, bytes, sha256, start_unix_ms, end_unix_ms } = object;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if !names.insert(name) {
        return Err(format!("{name} is listed twice"));
    }
    if *bytes == 0 || *bytes > MAX_OBJECT_BYTES {
        return Err(format!("{name} has {bytes} bytes; an object has 1 to {MAX_OBJECT_BYTES}"));
    }
    if sha256.len() != HASH_CHARS || !sha256.bytes().all(is_digit) {
        return Err(format!("the SHA-256 hash of {name} is not {HASH_CHARS} hexadecimal digits"));
    }
    if start_unix_ms > end_unix_ms || i64::try_from(*end_unix_ms).is_err() {
        return Err(format!("{name} has an impossible time"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::layout::recording_part_name;

    const IDENTITY: &str = "0123456789abcdef0123456789abcdef";

    fn manifest() -> Manifest {
        let object = |name: String| ObjectEntry { name, bytes: 10, sha256: "a".repeat(64), ..ObjectEntry::default() };
        let part = RecordingPartEntry {
            object: object(recording_part_name(Some(3), IDENTITY, 1)),
            end_event: 10,
            events: 10,
            ..RecordingPartEntry::default()
        };
        let rank =
            RankEntry { rank: Some(3), identity: IDENTITY.to_owned(), parts: vec![part], ..RankEntry::default() };
        let part = TablePartEntry { object: object(Table::Rollups.part_name(1)), rows: 1 };
        Manifest { ranks: vec![rank], rollups: vec![part], ..Manifest::new("run", 5) }
    }

    #[test]
    fn manifests_survive_json() {
        let json = manifest().to_json();
        assert_eq!(Manifest::parse(&json).expect("it is valid"), manifest());
        assert!(String::from_utf8_lossy(&json).contains(r#""first_event":0,"end_event":10"#));
    }

    #[test]
    fn tampered_manifests_are_refused() {
        type Change = fn(&mut Manifest);
        fn object(manifest: &mut Manifest) -> &mut ObjectEntry {
            &mut manifest.ranks[0].parts[0].object
        }
        let changes: [(Change, &str); 25] = [
            (|manifest| manifest.version = 2, "use a newer vramscope"),
            (|manifest| manifest.run = "../run".to_owned(), "name of the run"),
            (|manifest| object(manifest).name = "../../etc/passwd".to_owned(), "is not that of an object"),
            (|manifest| object(manifest).name.insert(0, '/'), "is not that of an object"),
            (|manifest| object(manifest).name.insert_str(0, "ranks/../"), "is not that of an object"),
            (|manifest| object(manifest).name = "manifest.json".to_owned(), "is not that of an object"),
            (|manifest| object(manifest).name = "\u{1b}[2J".to_owned(), r"\u{1b}[2J"),
            (|manifest| object(manifest).name = recording_part_name(Some(4), IDENTITY, 1), "is not that of an object"),
            (|manifest| object(manifest).name = recording_part_name(Some(3), IDENTITY, 0), "impossible event numbers"),
            (|manifest| object(manifest).bytes = 0, "has 0 bytes"),
            (|manifest| object(manifest).bytes = u64::MAX, "an object has 1 to"),
            (|manifest| object(manifest).sha256 = "A".repeat(64), "SHA-256"),
            (|manifest| object(manifest).sha256.truncate(63), "SHA-256"),
            (|manifest| object(manifest).start_unix_ms = 1, "impossible time"),
            (|manifest| object(manifest).end_unix_ms = u64::MAX, "impossible time"),
            (|manifest| manifest.ranks[0].parts[0].first_event = 11, "impossible event numbers"),
            (|manifest| manifest.ranks[0].parts[0].events = u64::MAX, "impossible event numbers"),
            (|manifest| manifest.ranks[0].parts[0].first_state = Some(11), "impossible event numbers"),
            (|manifest| manifest.ranks[0].identity = "../x".to_owned(), "identity of a process"),
            (|manifest| manifest.ranks[0].rank = Some(4), "is not that of an object"),
            (|manifest| manifest.ranks[0].host = "h\n".to_owned(), "control characters"),
            (|manifest| manifest.ranks[0].program = "p".repeat(81), "too long"),
            (|manifest| manifest.ranks.push(manifest.ranks[0].clone()), "repeated"),
            (|manifest| manifest.rollups.push(manifest.rollups[0].clone()), "is listed twice"),
            (|manifest| manifest.sites = manifest.rollups.clone(), "is not that of an object"),
        ];
        for (number, (change, expected)) in changes.into_iter().enumerate() {
            let mut changed = manifest();
            change(&mut changed);
            let error = Manifest::parse(&changed.to_json()).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(expected) && !error.contains('\u{1b}'), "{number}: {error}");
        }
        let mut repeated = manifest();
        let part = repeated.ranks[0].parts[0].clone();
        repeated.ranks[0].parts.push(part);
        assert!(Manifest::parse(&repeated.to_json()).is_err_and(|error| error.to_string().contains("listed twice")));
        for json in ["", "{}", "[]", r#"{"version":1}"#, "nul"] {
            assert!(Manifest::parse(json.as_bytes()).is_err(), "{json}");
        }
    }
}
