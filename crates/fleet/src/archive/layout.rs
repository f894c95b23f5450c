//! The names of the objects of an archive.
//!
//! Names are made only of a rank, an identity and numbers, so that no name refers to anything
//! outside the archive.

use crate::subjects::rank_name;

/// The name of the object that lists all others.
pub(crate) const MANIFEST: &str = "manifest.json";
/// Length of a process's identity, in hexadecimal digits.
const IDENTITY_CHARS: usize = 32;
/// The largest number of a part, which an object's name has in six digits.
pub(crate) const MAX_NUMBER: u32 = 999_999;

/// A table of an archive, divided into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// One row for each rank and second.
    Rollups,
    /// The largest sites of each rank and second.
    Sites,
}

impl Table {
    /// All tables of an archive.
    pub const ALL: [Self; 2] = [Self::Rollups, Self::Sites];

    /// Returns the table's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rollups => "rollups",
            Self::Sites => "sites",
        }
    }

    /// Returns the name of the table's part with this number.
    pub(crate) fn part_name(self, number: u32) -> String {
        format!("{}/part-{number:06}.parquet", self.name())
    }

    /// Returns the number in the name of one of the table's parts; `None` for any other name.
    pub(crate) fn parse_part(self, name: &str) -> Option<u32> {
        let number = number_before(name, ".parquet")?;
        (self.part_name(number) == name).then_some(number)
    }
}

/// Returns true if `text` can be the identity of a process: 32 hexadecimal digits, as the collector
/// writes them.
pub(crate) fn is_identity(text: &str) -> bool {
    text.len() == IDENTITY_CHARS && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Returns the name of a part of a process's recording.
pub(crate) fn recording_part_name(rank: Option<u32>, identity: &str, number: u32) -> String {
    format!("ranks/{}-{identity}/{number:06}.vram", rank_name(rank))
}

/// Returns the number in the name of a part of this process; `None` for any other name.
pub(crate) fn parse_recording_part(rank: Option<u32>, identity: &str, name: &str) -> Option<u32> {
    let number = number_before(name, ".vram")?;
    (is_identity(identity) && recording_part_name(rank, identity, number) == name).then_some(number)
}

/// Returns the number (six digits) before `extension` at the end of an object's name; `None` if the
/// name has another form.
fn number_before(name: &str, extension: &str) -> Option<u32> {
    let digits = name.strip_suffix(extension)?.rsplit(['/', '-']).next()?;
    let is_number = digits.len() == 6 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn names_survive_parsing() {
        for (rank, number) in [(None, 1), (Some(0), 1), (Some(4095), MAX_NUMBER)] {
            let name = recording_part_name(rank, IDENTITY, number);
            assert_eq!(parse_recording_part(rank, IDENTITY, &name), Some(number), "{name}");
            for table in Table::ALL {
                assert_eq!(table.parse_part(&table.part_name(number)), Some(number));
            }
        }
        assert_eq!(recording_part_name(Some(3), IDENTITY, 7), format!("ranks/3-{IDENTITY}/000007.vram"));
        assert_eq!(Table::Rollups.part_name(7), "rollups/part-000007.parquet");
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "".to_owned(),
            "../../etc/passwd".to_owned(),
            format!("/ranks/3-{IDENTITY}/000001.vram"),
            format!("ranks/3-{IDENTITY}/../000001.vram"),
            format!("ranks/../ranks/3-{IDENTITY}/000001.vram"),
            format!("ranks/4-{IDENTITY}/000001.vram"),
            format!("ranks/03-{IDENTITY}/000001.vram"),
            format!("ranks/3-{IDENTITY}/1.vram"),
            format!("ranks/3-{IDENTITY}/0000001.vram"),
            format!("ranks/3-{IDENTITY}/+00001.vram"),
            format!("ranks/3-{IDENTITY}/000001.vram/"),
            format!("ranks/3-{IDENTITY}//000001.vram"),
            format!("ranks/3-{IDENTITY}/%2e%2e/000001.vram"),
            format!("other/3-{IDENTITY}/000001.vram"),
        ] {
            assert_eq!(parse_recording_part(Some(3), IDENTITY, &name), None, "{name}");
        }
        let upper = IDENTITY.to_uppercase();
        assert_eq!(parse_recording_part(Some(3), &upper, &recording_part_name(Some(3), &upper, 1)), None);
        for name in
            ["", "sites/part-000001.parquet", "rollups/part-1.parquet", "rollups/../rollups/part-000001.parquet"]
        {
            assert_eq!(Table::Rollups.parse_part(name), None, "{name}");
        }
    }
}
