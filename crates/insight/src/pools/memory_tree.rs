//! The memory of a device as a tree: who holds it, what the pool consists of, categories and lines.

use std::sync::Arc;

use serde::Serialize;
use vramscope_trace::sort::sort_by_key;
use vramscope_trace::{Category, DeviceId};

use super::device_owners::DeviceOwners;
use super::usage::FreeMemory;
use crate::sites::GroupRow;

/// What a part of a device's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartKind {
    /// All memory of the device.
    Device,
    /// All memory that the recording knows, of a device whose size it lacks.
    Recorded,
    /// The pool's segments: the reserved bytes.
    Reserved,
    /// Memory of this process outside the pool.
    Outside,
    /// Memory of other processes.
    OtherProcesses,
    /// Free memory of the driver.
    Free,
    /// Memory of which the recording does not say who holds it.
    Unknown,
    /// Free memory that shares a segment or page with live blocks.
    Stuck,
    /// Whole free segments and pages.
    Releasable,
    /// Live blocks of a category, with their rounding, including blocks that are pending free.
    Category(Category),
    /// Live blocks of a category that one line of the program allocated.
    Line,
}

impl PartKind {
    /// The kinds of parts other than categories and lines.
    pub const PLAIN: [Self; 9] = [
        Self::Device,
        Self::Recorded,
        Self::Reserved,
        Self::Outside,
        Self::OtherProcesses,
        Self::Free,
        Self::Unknown,
        Self::Stuck,
        Self::Releasable,
    ];

    /// Returns the name in JSON.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Recorded => "recorded",
            Self::Reserved => "reserved",
            Self::Outside => "outside",
            Self::OtherProcesses => "other_processes",
            Self::Free => "free",
            Self::Unknown => "unknown",
            Self::Stuck => "stuck",
            Self::Releasable => "releasable",
            Self::Category(_) => "category",
            Self::Line => "line",
        }
    }

    /// Returns the name for users; empty for a line, which has a name of its own.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Recorded => "recorded",
            Self::Reserved => "reserved",
            Self::Outside => "outside the pool",
            Self::OtherProcesses => "other processes",
            Self::Free => "free on the device",
            Self::Unknown => "not recorded",
            Self::Stuck => "stuck beside blocks",
            Self::Releasable => "whole free segments",
            Self::Category(category) => category.name(),
            Self::Line => "",
        }
    }
}

/// A part of a device's memory. The bytes of its parts add up to its own bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// What it is.
    pub kind: PartKind,
    /// Its name for users.
    pub name: Arc<str>,
    /// Its bytes.
    pub bytes: u64,
    /// The number of the line's group, for a line.
    pub group: Option<u32>,
    /// Its parts that have bytes; none for a part that is not divided.
    pub parts: Vec<Self>,
}

impl MemoryPart {
    /// Creates a part that is not divided.
    fn leaf(kind: PartKind, bytes: u64) -> Self {
        Self { kind, name: kind.name().into(), bytes, group: None, parts: Vec::new() }
    }

    /// Creates a part from its parts. Those without bytes are left out.
    fn of_parts(kind: PartKind, parts: impl IntoIterator<Item = Self>) -> Self {
        let parts: Vec<Self> = parts.into_iter().filter(|part| part.bytes > 0).collect();
        let bytes = Self::total(&parts);
        Self { parts, ..Self::leaf(kind, bytes) }
    }

    /// Returns the bytes of some parts together.
    fn total(parts: &[Self]) -> u64 {
        parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Returns the part of a kind among this part and its parts; `None` if it has no bytes.
    #[must_use]
    pub fn find(&self, kind: PartKind) -> Option<&Self> {
        if self.kind == kind {
            return Some(self);
        }
        self.parts.iter().find_map(|part| part.find(kind))
    }
}

/// Returns the memory of a device as a tree: the device; its owners; what the pool reserves; each
/// category; its lines, largest first. `free` is the free memory of the pool, `lines` the live
/// blocks by line.
///
/// Reserved bytes that are neither in blocks nor free are unknown: a recording with inconsistencies
/// has some. If blocks are outside of all segments, the pool has more bytes than its counter.
#[must_use]
pub fn memory_tree(owners: &DeviceOwners, free: FreeMemory, lines: &[GroupRow]) -> MemoryPart {
    let mut categories: Vec<(Category, Vec<MemoryPart>)> = Vec::new();
    for row in lines {
        // Recorded and inferred bytes of one category are one part.
        let mut of_line: Vec<(Category, u64)> = Vec::new();
        for &(known, bytes) in &row.categories {
            match of_line.iter_mut().find(|(category, _)| *category == known.category) {
                Some((_, sum)) => *sum = sum.saturating_add(bytes),
                None => of_line.push((known.category, bytes)),
            }
        }
        for (category, bytes) in of_line {
            let name = row.name.clone();
            let line = MemoryPart { kind: PartKind::Line, name, bytes, group: Some(row.group), parts: Vec::new() };
            match categories.iter_mut().find(|(known, _)| *known == category) {
                Some((_, lines)) => lines.push(line),
                None => categories.push((category, vec![line])),
            }
        }
    }
    // In a fixed order, so that a part stays at its place while the user scrubs.
    sort_by_key(&mut categories, |&(category, _)| (category == Category::Unknown, category));
    let categories: Vec<MemoryPart> = categories
        .into_iter()
        .map(|(category, mut lines)| {
            sort_by_key(&mut lines, |line| (std::cmp::Reverse(line.bytes), line.group));
            MemoryPart::of_parts(PartKind::Category(category), lines)
        })
        .collect();
    let free = if owners.lacks_segments { FreeMemory::default() } else { free };
    let stuck = MemoryPart::leaf(PartKind::Stuck, free.stuck_bytes);
    let releasable = MemoryPart::leaf(PartKind::Releasable, free.space.total.saturating_sub(free.stuck_bytes));
    let mut held = vec![stuck, releasable];
    held.extend(categories);
    let unexplained = owners.reserved_bytes.saturating_sub(MemoryPart::total(&held));
    held.push(MemoryPart::leaf(PartKind::Unknown, unexplained));
    let pool = MemoryPart::of_parts(PartKind::Reserved, held);
    let others = [
        (PartKind::Outside, owners.outside_bytes),
        (PartKind::OtherProcesses, owners.others_bytes),
        (PartKind::Unknown, Some(owners.unknown_bytes())),
        (PartKind::Free, owners.free_bytes),
    ];
    let others = others.into_iter().map(|(kind, bytes)| MemoryPart::leaf(kind, bytes.unwrap_or(0)));
    let kind = if owners.device_bytes.is_some() { PartKind::Device } else { PartKind::Recorded };
    MemoryPart::of_parts(kind, std::iter::once(pool).chain(others))
}

/// A part of a device's memory as a row, for scripts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OwnerRow {
    /// The names of the parts that contain it and its own, from the device, separated by `/`. In a
    /// name, `%2F` stands for `/` and `%25` for `%`.
    pub path: String,
    /// Its name.
    pub owner: String,
    /// What it is, see [`PartKind::id`].
    pub kind: &'static str,
    /// Its bytes; the rows below its path add up to them.
    pub bytes: u64,
    /// The process that holds it; empty if none does, or it is not known.
    pub process: String,
    /// The device's number.
    pub device: u16,
}

/// Returns the parts of a device's memory as rows, each before its parts. `process` is the process
/// that the recording is of.
#[must_use]
pub fn owner_rows(tree: &MemoryPart, process: &str, device: DeviceId) -> Vec<OwnerRow> {
    let mut rows = Vec::new();
    add_rows(tree, "", process, device, &mut rows);
    rows
}

/// Appends the row of a part below `path` and the rows of its parts.
fn add_rows(part: &MemoryPart, path: &str, process: &str, device: DeviceId, rows: &mut Vec<OwnerRow>) {
    let name = part.name.replace('%', "%25").replace('/', "%2F");
    let path = if path.is_empty() { name } else { format!("{path}/{name}") };
    let is_of_process = !matches!(
        part.kind,
        PartKind::Device | PartKind::Recorded | PartKind::OtherProcesses | PartKind::Free | PartKind::Unknown
    );
    rows.push(OwnerRow {
        path: path.clone(),
        owner: part.name.to_string(),
        kind: part.kind.id(),
        bytes: part.bytes,
        process: if is_of_process { process.to_owned() } else { String::new() },
        device: device.0,
    });
    for part in &part.parts {
        add_rows(part, &path, process, device, rows);
    }
}

#[cfg(test)]
mod tests {
    use vramscope_trace::FreeSpace;

    use super::*;
    use crate::group::{CategorySource, MemoryCategory};

    /// Returns the live blocks of a line with bytes by category.
    fn line(group: u32, name: &str, categories: &[(Category, CategorySource, u64)]) -> GroupRow {
        let categories: Vec<(MemoryCategory, u64)> =
            categories.iter().map(|&(category, source, bytes)| (MemoryCategory { category, source }, bytes)).collect();
        let bytes = categories.iter().map(|(_, bytes)| bytes).sum();
        let (pending_bytes, requested_bytes, blocks, share) = (0, bytes, 1, 0.0);
        GroupRow { group, name: name.into(), categories, bytes, pending_bytes, requested_bytes, blocks, share }
    }

    /// Asserts that the parts of a part add up to it, and theirs.
    fn check_sums(part: &MemoryPart) {
        if !part.parts.is_empty() {
            assert_eq!(part.parts.iter().map(|part| part.bytes).sum::<u64>(), part.bytes, "{}", part.name);
        }
        part.parts.iter().for_each(check_sums);
    }

    #[test]
    fn parts_add_up() {
        let (recorded, inferred) = (CategorySource::Recorded, CategorySource::Inferred);
        let lines = [
            line(7, "a/b.py:1", &[(Category::Activation, recorded, 30), (Category::Activation, inferred, 12)]),
            line(3, "c.py:2", &[(Category::Activation, inferred, 50), (Category::Parameter, inferred, 8)]),
        ];
        let owners = DeviceOwners {
            device_bytes: Some(1000),
            reserved_bytes: 200,
            outside_bytes: Some(40),
            others_bytes: Some(0),
            free_bytes: Some(700),
            ..DeviceOwners::default()
        };
        let free = FreeMemory { space: FreeSpace { total: 90, largest: 60, blocks: 2 }, stuck_bytes: 30 };
        let tree = memory_tree(&owners, free, &lines);
        check_sums(&tree);
        let rows = owner_rows(&tree, "train.py", DeviceId(1));
        let texts: Vec<(&str, &str, u64, &str)> =
            rows.iter().map(|row| (&*row.path, row.kind, row.bytes, &*row.process)).collect();
        let program = "train.py";
        let expected = [
            ("device", "device", 1000, ""),
            ("device/reserved", "reserved", 200, program),
            ("device/reserved/stuck beside blocks", "stuck", 30, program),
            ("device/reserved/whole free segments", "releasable", 60, program),
            ("device/reserved/parameter", "category", 8, program),
            ("device/reserved/parameter/c.py:2", "line", 8, program),
            ("device/reserved/activation", "category", 92, program),
            ("device/reserved/activation/c.py:2", "line", 50, program),
            ("device/reserved/activation/a%2Fb.py:1", "line", 42, program),
            ("device/reserved/not recorded", "unknown", 10, ""),
            ("device/outside the pool", "outside", 40, program),
            ("device/not recorded", "unknown", 60, ""),
            ("device/free on the device", "free", 700, ""),
        ];
        assert_eq!(texts, expected);
        let unknown = memory_tree(&DeviceOwners { reserved_bytes: 7, ..DeviceOwners::default() }, free, &lines);
        check_sums(&unknown);
        assert_eq!((unknown.kind, unknown.bytes), (PartKind::Recorded, 190), "blocks count more than the counter");
    }
}
