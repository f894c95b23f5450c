//! The difference between two recordings: totals of each device, and memory of each site, at the
//! peak and at the end.
//!
//! Site numbers are only valid within one recording, so sites are matched by content: scope,
//! category and whole call stack. Between two runs code changes, lines move, and files are in other
//! directories. A site that only one recording has is therefore matched with one that only the
//! other has, if the two differ only in file paths, else only in line numbers, else only in both.
//! These looser comparisons ignore how the script was started.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::device_state::DeviceState;
use crate::error::FormatError;
use crate::event::DeviceId;
use crate::live_bytes_by_site::{SiteBytes, frame_name, live_bytes_by_site, site_name};
use crate::memory_state::MemoryState;
use crate::metrics::Metrics;
use crate::metrics_over_time::{MetricSummary, metrics_over_time};
use crate::recording::{Recording, Replay};
use crate::site::{Category, Definitions, SiteId};
use crate::site_matching::{PerRecording, shared_site_numbers};

/// Size of the request for which [`DeviceTotals`] has the unusable share: 16 MiB, the first power
/// of two above 10 MiB. Larger requests that fit no free block make PyTorch's allocator reserve a
/// segment of their own size.
pub const UNUSABLE_REQUEST_BYTES: u64 = 16 << 20;

/// Most frames of a call stack in a [`SiteChange`]. Matching compares whole stacks.
const SHOWN_FRAMES: usize = 64;

/// The totals of one device in one recording.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceTotals {
    /// Number of events on the device.
    pub events: u64,
    /// Allocated bytes at the end.
    pub allocated_bytes: u64,
    /// Reserved bytes at the end.
    pub reserved_bytes: u64,
    /// Peak of allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Peak of reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Number of out-of-memory events.
    pub ooms: u64,
    /// Fragmentation (see [`FreeSpace::fragmentation`](crate::FreeSpace::fragmentation)) at the
    /// first moment of the peak of allocated bytes.
    pub peak_fragmentation: f64,
    /// Fragmentation at the end.
    pub fragmentation: f64,
    /// Highest fragmentation and its mean over time, from [`metrics_over_time`].
    pub fragmentation_over_time: MetricSummary,
    /// Highest [unusable share](crate::Metrics::unusable_share) of the free bytes for a request of
    /// [`UNUSABLE_REQUEST_BYTES`], and its mean over time.
    pub unusable_share_over_time: MetricSummary,
}

/// The allocated blocks of one site at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockTotals {
    /// Bytes of the blocks, after rounding.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// A device's totals in both recordings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceChange {
    /// The device.
    pub device: DeviceId,
    /// Its totals; `None` in a recording without the device.
    pub totals: PerRecording<Option<DeviceTotals>>,
}

/// The memory of one site on one device in both recordings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteChange {
    /// The device.
    pub device: DeviceId,
    /// The site as one line (see [`site_name`]), from the second recording if that has it.
    pub name: String,
    /// The scope path, empty for none.
    pub scope: String,
    /// What the memory is used for.
    pub category: Category,
    /// Up to 64 frames of the call stack as lines, innermost first.
    pub stack: Vec<String>,
    /// Allocated blocks at the first moment of the device's peak of allocated bytes.
    pub peak: PerRecording<BlockTotals>,
    /// Allocated blocks at the end.
    pub end: PerRecording<BlockTotals>,
}

impl SiteChange {
    /// Returns the growth in bytes from the first to the second recording, at the peak and at the
    /// end.
    #[must_use]
    pub fn growth(&self) -> (i128, i128) {
        let grown = |bytes: &PerRecording<BlockTotals>| i128::from(bytes.b.bytes) - i128::from(bytes.a.bytes);
        (grown(&self.peak), grown(&self.end))
    }
}

/// The difference between two recordings, from [`compare`](fn@compare).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The devices of both recordings, by number.
    pub devices: Vec<DeviceChange>,
    /// The sites with memory at the peak or the end of either recording, by device, then by growth
    /// at the peak, largest first.
    pub sites: Vec<SiteChange>,
}

/// Compares two recordings, device by device and site by site.
///
/// Sites are matched by scope, category and call stack; moved lines and files are tolerated.
///
/// # Errors
/// If a chunk cannot be read.
///
/// ```
/// use vramscope_trace::{
///     DeviceId, Encoder, Event, EventKind, PoolKey, Recording, RecordingInfo, Sink, SiteId, StreamId,
///     compare,
/// };
///
/// fn recording_of_block(size: u64) -> Recording {
///     let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(0));
///     let mut encoder = Encoder::new(&RecordingInfo::default());
///     for kind in [
///         EventKind::SegmentAllocated { address: 0, size: 2 << 20, stream, pool, site },
///         EventKind::BlockAllocated { address: 0, size, requested: size, stream, pool, site },
///     ] {
///         encoder.event(&Event { device: DeviceId(0), time_ns: 0, kind });
///     }
///     encoder.flush();
///     let mut recording = Recording::new();
///     for chunk in encoder.take_output() {
///         recording.push(&chunk.bytes).expect("the encoder wrote valid chunks");
///     }
///     recording
/// }
///
/// let comparison = compare(&recording_of_block(512), &recording_of_block(2048))?;
/// assert_eq!(comparison.sites[0].growth(), (1536, 1536));
/// # Ok::<(), vramscope_trace::FormatError>(())
/// ```
pub fn compare(a: &Recording, b: &Recording) -> Result<Comparison, FormatError> {
    let keys = shared_site_numbers(a.definitions(), b.definitions());
    let peak_and_end = PerRecording { a: peak_and_end(a)?, b: peak_and_end(b)? };
    let mut comparison = Comparison::default();
    let devices: BTreeSet<DeviceId> = peak_and_end.a.keys().chain(peak_and_end.b.keys()).copied().collect();
    for device in devices {
        let of = |peak_and_end: &BTreeMap<DeviceId, PeakAndEnd>| {
            peak_and_end.get(&device).map(|peak_and_end| peak_and_end.totals)
        };
        comparison
            .devices
            .push(DeviceChange { device, totals: PerRecording { a: of(&peak_and_end.a), b: of(&peak_and_end.b) } });
        let mut changes: HashMap<SiteId, SiteChange> = HashMap::new();
        // The second recording comes first, so that a site of both is described as in the second.
        for (recording, peak_and_end, keys, second) in
            [(b, &peak_and_end.b, &keys.b, true), (a, &peak_and_end.a, &keys.a, false)]
        {
            let Some(peak_and_end) = peak_and_end.get(&device) else { continue };
            for (sites, at_peak) in [(&peak_and_end.peak, true), (&peak_and_end.end, false)] {
                for (&site, totals) in sites {
                    let key = keys.get(site.0 as usize).copied().unwrap_or_default();
                    let change =
                        changes.entry(key).or_insert_with(|| new_site_change(device, recording.definitions(), site));
                    let totals_of_both = if at_peak { &mut change.peak } else { &mut change.end };
                    let sum = if second { &mut totals_of_both.b } else { &mut totals_of_both.a };
                    sum.bytes = sum.bytes.saturating_add(totals.bytes);
                    sum.blocks += totals.blocks;
                }
            }
        }
        let mut changes: Vec<SiteChange> = changes.into_values().collect();
        changes.sort_by(|a, b| {
            let rank = |change: &SiteChange| (change.growth(), change.peak.b.bytes);
            // The rest only makes the order deterministic.
            let rest = |change: &SiteChange| (change.name.clone(), change.stack.clone(), change.end.b.bytes);
            rank(b).cmp(&rank(a)).then_with(|| rest(a).cmp(&rest(b)))
        });
        comparison.sites.extend(changes);
    }
    Ok(comparison)
}

/// A device of one recording at its peak of allocated bytes and at the end: totals, and the
/// allocated blocks by site.
struct PeakAndEnd {
    totals: DeviceTotals,
    peak: BTreeMap<SiteId, BlockTotals>,
    end: BTreeMap<SiteId, BlockTotals>,
}

/// Returns the allocated blocks of every site with memory at this moment.
fn block_totals_by_site(device: &DeviceState) -> BTreeMap<SiteId, BlockTotals> {
    let totals = |site: SiteBytes| (site.site, BlockTotals { bytes: site.bytes, blocks: site.blocks });
    live_bytes_by_site(device).into_iter().map(totals).collect()
}

/// Returns what to compare of every device of a recording; devices without a counter series are
/// left out.
fn peak_and_end(recording: &Recording) -> Result<BTreeMap<DeviceId, PeakAndEnd>, FormatError> {
    let mut replay = Replay::new();
    let mut peak_and_end = BTreeMap::new();
    let nothing = DeviceState::default();
    for (id, end) in recording.end_state().devices() {
        let Some(series) = recording.series(id) else { continue };
        let state: &MemoryState = replay.seek(recording, series.peak_allocated().event)?;
        let peak = state.device(id).unwrap_or(&nothing);
        let metrics = metrics_over_time(recording, id)?;
        let totals = DeviceTotals {
            events: end.events(),
            allocated_bytes: end.counters().allocated,
            reserved_bytes: end.counters().reserved,
            peak_allocated_bytes: series.peak_allocated().bytes,
            peak_reserved_bytes: series.peak_reserved().bytes,
            ooms: end.ooms(),
            peak_fragmentation: peak.free_space().fragmentation(),
            fragmentation: end.free_space().fragmentation(),
            fragmentation_over_time: metrics.summary(Metrics::fragmentation),
            unusable_share_over_time: metrics.summary(|metrics| metrics.unusable_share(UNUSABLE_REQUEST_BYTES)),
        };
        peak_and_end
            .insert(id, PeakAndEnd { totals, peak: block_totals_by_site(peak), end: block_totals_by_site(end) });
    }
    Ok(peak_and_end)
}

/// Creates the change of one site, described by `definitions`, with totals of 0 in both recordings.
fn new_site_change(device: DeviceId, definitions: &Definitions, id: SiteId) -> SiteChange {
    let site = definitions.site(id);
    let stack = definitions.stack(site.stack).take(SHOWN_FRAMES);
    SiteChange {
        device,
        name: site_name(definitions, id),
        scope: definitions.string(site.scope).to_owned(),
        category: site.category,
        stack: stack.map(|frame| frame_name(definitions, frame, false)).collect(),
        peak: PerRecording::default(),
        end: PerRecording::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::Encoder;
    use crate::event::{Event, EventKind, PoolKey, StreamId};
    use crate::info::RecordingInfo;
    use crate::sink::Sink;
    use crate::site::{Frame, Interner, Site, StackId};
    use crate::site_matching::TOP_LEVEL;

    fn recording(sites: &[(&str, u32, u64)]) -> Recording {
        recording_of("train.py", false, sites)
    }

    /// Returns a recording with one block for each of `sites` (function, line, bytes) in `file`,
    /// the last of which is freed. If `started`, another program started the script.
    fn recording_of(file: &str, started: bool, sites: &[(&str, u32, u64)]) -> Recording {
        let (mut encoder, mut interner) = (Encoder::new(&RecordingInfo::default()), Interner::default());
        let (stream, pool) = (StreamId(0), PoolKey::default());
        let event = |encoder: &mut Encoder, kind| encoder.event(&Event { device: DeviceId(0), time_ns: 1, kind });
        let whole = EventKind::SegmentAllocated { address: 1 << 20, size: 1 << 20, stream, pool, site: SiteId(0) };
        event(&mut encoder, whole);
        let mut address = 1 << 20;
        for &(function, line, size) in sites {
            let file = interner.string(file);
            let [main, function, run] = [TOP_LEVEL, function, "run_path"].map(|name| interner.string(name));
            let outer = interner.frame(Frame { function: main, file, line: 1 });
            let inner = interner.frame(Frame { function, file, line });
            let start = interner.frame(Frame { function: run, file, line: 286 });
            let start = if started { interner.stack(start, StackId(0)) } else { StackId(0) };
            let outer = interner.stack(outer, start);
            let stack = interner.stack(inner, outer);
            let site = interner.site(Site { stack, ..Site::default() });
            for definition in interner.take_new() {
                encoder.define(&definition);
            }
            event(&mut encoder, EventKind::BlockAllocated { address, size, requested: size, stream, pool, site });
            address += size;
        }
        if let Some((_, _, size)) = sites.last() {
            event(&mut encoder, EventKind::FreeCompleted { address: address - size, site: SiteId(0) });
        }
        encoder.flush();
        let mut recording = Recording::new();
        for chunk in encoder.take_output() {
            recording.push(&chunk.bytes).expect("the encoder wrote valid chunks");
        }
        recording
    }

    /// Checks the name, the bytes at the peaks and the bytes at the ends of each site.
    #[track_caller]
    fn check(a: &[(&str, u32, u64)], b: &[(&str, u32, u64)], expected: &[(&str, [u64; 2], [u64; 2])]) {
        let comparison = compare(&recording(a), &recording(b)).expect("both recordings can be read");
        let actual: Vec<_> = comparison
            .sites
            .iter()
            .map(|site| {
                let bytes = |totals: PerRecording<BlockTotals>| [totals.a.bytes, totals.b.bytes];
                (site.name.as_str(), bytes(site.peak), bytes(site.end))
            })
            .collect();
        assert_eq!(actual, expected);
    }

    #[test]
    fn sites_are_matched_by_content() {
        let (f, g, last) = (("f", 3, 1024), ("g", 4, 512), ("last", 9, 512));
        let freed = ("train.py:9 last", [512, 512], [0, 0]);
        // Another order leads to other site numbers.
        check(
            &[f, g, last],
            &[g, f, f, last],
            &[("train.py:3 f", [1024, 2048], [1024, 2048]), ("train.py:4 g", [512, 512], [512, 512]), freed],
        );
        check(&[f, last], &[last], &[freed, ("train.py:3 f", [1024, 0], [1024, 0])]);
    }

    #[test]
    fn sites_match_despite_moved_lines() {
        let last = ("last", 9, 512);
        let freed = ("train.py:9 last", [512, 512], [0, 0]);
        let moved = ("train.py:5 f", [1024, 1024], [1024, 1024]);
        check(&[("f", 3, 1024), last], &[("f", 5, 1024), last], &[moved, freed]);
        // Both recordings have line 3, so line 5 is another site.
        check(
            &[("f", 3, 1024), last],
            &[("f", 3, 1024), ("f", 5, 2048), last],
            &[("train.py:5 f", [0, 2048], [0, 2048]), ("train.py:3 f", [1024, 1024], [1024, 1024]), freed],
        );
        // Two sites match the same site of the other recording.
        check(
            &[("f", 3, 1024), ("f", 4, 512), last],
            &[("f", 6, 2048), last],
            &[("train.py:6 f", [1536, 2048], [1536, 2048]), freed],
        );
    }

    #[test]
    fn sites_match_despite_moved_files() {
        let lines = |add: u32| [("f", 3 + add, 1024), ("f", 4 + add, 2048), ("last", 9 + add, 512)];
        let here = recording_of("/home/a/train.py", false, &lines(0));
        for (there, sites) in [
            (recording_of("/opt/run.py", false, &lines(0)), 3),
            (recording_of("/opt/run.py", true, &lines(0)), 3),
            (recording_of("/opt/run.py", true, &lines(20)), 2),
        ] {
            let comparison = compare(&here, &there).expect("both recordings can be read");
            assert_eq!(comparison.sites.len(), sites, "{comparison:?}");
            assert!(comparison.sites.iter().all(|site| site.growth() == (0, 0)), "{comparison:?}");
            assert!(comparison.sites.iter().all(|site| site.name.starts_with("run.py")), "{comparison:?}");
        }
    }

    #[test]
    fn device_may_be_in_one_recording_only() {
        let comparison =
            compare(&Recording::new(), &recording(&[("f", 3, 1024)])).expect("both recordings can be read");
        let [device] = comparison.devices.as_slice() else { panic!("{comparison:?}") };
        assert_eq!(device.totals.a, None);
        let totals = device.totals.b.expect("the second recording has the device");
        assert_eq!((totals.events, totals.peak_allocated_bytes, totals.allocated_bytes), (3, 1024, 0));
        assert_eq!((totals.peak_fragmentation, totals.ooms), (0.0, 0));
    }

    #[test]
    fn metrics_over_time_are_those_of_the_samples() {
        let recording = recording(&[("f", 3, 1 << 19), ("g", 4, 1 << 18), ("last", 9, 1 << 17)]);
        let metrics = metrics_over_time(&recording, DeviceId(0)).expect("the recording can be read");
        let free: Vec<_> = metrics.iter().map(|(event, _, metrics)| (event, metrics.free.total)).collect();
        // The beginning, the peak and the end.
        assert_eq!(free, [(0, 0), (4, 1 << 17), (5, 1 << 18)]);
        let free = metrics.summary(|metrics| metrics.free.total as f64);
        // All events have the same time, so the mean is that of the samples.
        assert_eq!((free.highest, free.highest_event, free.mean), (f64::from(1 << 18), 5, f64::from(1 << 17)));
    }
}
