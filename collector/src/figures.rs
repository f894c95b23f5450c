//! Current totals of a recording in progress.

use std::time::Duration;

use vramscope_trace::{
    Counters, DeviceInfo, DeviceState, FreeSpace, MemorySample, SiteBytes, StringId, live_bytes_by_site,
};

/// The most sites in [`DeviceFigures::largest_sites`].
const MAX_SITES: usize = 8;
/// The most names in [`Figures::marks`].
const MAX_MARKS: usize = 32;

/// Current totals of a recording in progress: numbers of recorded and lost events, file size, and
/// each device's memory. The recorder updates them about once a second, or ten times a second while
/// they are [watched](crate::Hub::watch_figures).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The program's name.
    pub program: String,
    /// Number of recorded events.
    pub events: u64,
    /// Number of events missing from the recording, for example because a queue was full.
    pub lost_events: u64,
    /// How often the program waited because a queue was full.
    pub waits: u64,
    /// Total time that the program waited, over all `waits`.
    pub waited: Duration,
    /// Size of the recording's file in bytes; `None` without a file.
    pub file_bytes: Option<u64>,
    /// Numbers of marks by name, the most recently used name first; at most 32 names.
    pub marks: Vec<MarkFigures>,
    /// Totals by device, in order of device number.
    pub devices: Vec<DeviceFigures>,
}

/// The marks of one name: how many were made, and when the last one was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkFigures {
    /// The name, as the recording's definitions have it.
    pub name: StringId,
    /// Number of marks that begin a span of this name or stand alone.
    pub count: u64,
    /// Time of the last mark, in nanoseconds since the recording's time 0.
    pub last_ns: u64,
}

/// Counts a mark named `name` in `marks` and moves the name to the front. Beyond [`MAX_MARKS`]
/// names, removes the least recently used name.
pub(crate) fn count_mark(marks: &mut Vec<MarkFigures>, name: StringId, time_ns: u64) {
    let known = marks.iter().position(|mark| mark.name == name);
    let before = known.map(|index| marks.remove(index)).unwrap_or_default();
    marks.truncate(MAX_MARKS - 1);
    marks.insert(0, MarkFigures { name, count: before.count + 1, last_ns: time_ns });
}

/// One device's memory after the last recorded event: bytes by state (allocated, active, reserved,
/// requested), free space, and numbers of segments and active blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFigures {
    /// Name and total memory of the device.
    pub info: DeviceInfo,
    /// Allocated, active, reserved and requested bytes.
    pub counters: Counters,
    /// Free space inside segments.
    pub free_space: FreeSpace,
    /// The newest sample of the whole device's memory, if its driver reports one.
    pub sample: Option<MemorySample>,
    /// Number of segments.
    pub segments: u64,
    /// Number of active blocks.
    pub blocks: u64,
    /// Number of requests that failed with out of memory.
    pub out_of_memory: u64,
    /// The sites that hold most memory, the largest first; at most 8, and none while the figures
    /// are not [watched](crate::Hub::watch_figures).
    pub largest_sites: Vec<SiteBytes>,
}

impl DeviceFigures {
    /// Computes a device's bytes, free space and numbers of blocks from its memory state. Visits
    /// every block, so the time grows with the number of blocks.
    #[must_use]
    pub fn of(info: DeviceInfo, state: &DeviceState) -> Self {
        Self {
            info,
            counters: state.counters(),
            free_space: state.free_space(),
            sample: state.sample(),
            segments: state.segments().len() as u64,
            blocks: state.blocks().len() as u64,
            out_of_memory: state.ooms(),
            largest_sites: Vec::new(),
        }
    }

    /// Adds the sites that hold most memory, which takes longer than all other figures.
    #[must_use]
    pub fn with_largest_sites(self, state: &DeviceState) -> Self {
        let mut largest_sites = live_bytes_by_site(state);
        largest_sites.truncate(MAX_SITES);
        Self { largest_sites, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_marks_are_counted_by_name() {
        let mut marks = Vec::new();
        for (time_ns, name) in [1, 2, 1, 1, 3].into_iter().enumerate() {
            count_mark(&mut marks, StringId(name), time_ns as u64);
        }
        let counted: Vec<_> = marks.iter().map(|mark| (mark.name.0, mark.count, mark.last_ns)).collect();
        assert_eq!(counted, [(3, 1, 4), (1, 3, 3), (2, 1, 1)]);
        for name in 0..100 {
            count_mark(&mut marks, StringId(name), 10);
        }
        assert_eq!((marks.len(), marks[0].name.0), (MAX_MARKS, 99));
    }
}
