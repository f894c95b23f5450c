//! The difference between two recordings: totals of each device; memory of each site, at the peak
//! and at the end; and allocations of each site, from beginning to end.
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
use crate::lifetimes::Lifetimes;
use crate::live_bytes_by_site::{SiteBytes, frame_name, live_bytes_by_site, site_name};
use crate::memory_state::MemoryState;
use crate::metrics::{Churn, Metrics};
use crate::metrics_over_time::{MetricSummary, metrics_over_time};
use crate::recording::{Recording, Replay};
use crate::site::{Category, Definitions, SiteId};
use crate::site_matching::{PerRecording, shared_site_numbers};

/// Size in bytes of the request for which [`DeviceTotals`] says what share of the free bytes is too
/// fragmented to serve it: 16 MiB, the first power of two above 10 MiB. Larger requests that fit no
/// free block make PyTorch's allocator reserve a segment of their own size.
pub const UNUSABLE_REQUEST_BYTES: u64 = 16 << 20;

/// Most frames of a call stack that a [`SiteChange`] lists; outer frames beyond are left out. Sites
/// are matched by their whole stacks.
const SHOWN_FRAMES: usize = 64;

/// The figures of one device of a recording, to compare them with another: numbers of events and
/// allocations, bytes at the end and at their peaks, and fragmentation.
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
    /// The recorded allocations, freed ones included.
    pub churn: Churn,
}

/// The number and bytes of the allocated blocks of one site at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockTotals {
    /// Bytes of the blocks, after rounding.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// The figures of one device in each of two compared recordings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceChange {
    /// The device.
    pub device: DeviceId,
    /// Its totals; `None` in a recording without the device.
    pub totals: PerRecording<Option<DeviceTotals>>,
}

/// The memory of one site on one device in each of two compared recordings: its allocated blocks at
/// the peak and at the end, and its allocations in all.
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
    /// The recorded allocations, freed ones included.
    pub churn: PerRecording<Churn>,
}

impl SiteChange {
    /// Returns how many more allocated bytes the site has in the second recording than in the
    /// first, at the device's peak and at the end; negative if it has fewer.
    #[must_use]
    pub fn growth(&self) -> (i128, i128) {
        let grown = |bytes: &PerRecording<BlockTotals>| i128::from(bytes.b.bytes) - i128::from(bytes.a.bytes);
        (grown(&self.peak), grown(&self.end))
    }
}

/// The difference between two recordings, device by device and site by site, from
/// [`compare`](fn@compare).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The devices of both recordings, by number.
    pub devices: Vec<DeviceChange>,
    /// The sites with memory at the peak or the end of either recording, or with a recorded
    /// allocation, by device, then by growth at the peak, largest first.
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
    let figures = PerRecording { a: device_figures(a)?, b: device_figures(b)? };
    let mut comparison = Comparison::default();
    let devices: BTreeSet<DeviceId> = figures.a.keys().chain(figures.b.keys()).copied().collect();
    for device in devices {
        let totals = |figures: &BTreeMap<DeviceId, DeviceFigures>| figures.get(&device).map(|figures| figures.totals);
        let totals = PerRecording { a: totals(&figures.a), b: totals(&figures.b) };
        comparison.devices.push(DeviceChange { device, totals });
        let mut changes: HashMap<SiteId, SiteChange> = HashMap::new();
        // The second recording comes first, so that a site of both is described as in the second.
        for (recording, figures, keys, second) in [(b, &figures.b, &keys.b, true), (a, &figures.a, &keys.a, false)] {
            let Some(figures) = figures.get(&device) else { continue };
            for (&site, of_site) in &figures.sites {
                let key = keys.get(site.0 as usize).copied().unwrap_or_default();
                let change =
                    changes.entry(key).or_insert_with(|| new_site_change(device, recording.definitions(), site));
                side_of(&mut change.peak, second).add(of_site.peak);
                side_of(&mut change.end, second).add(of_site.end);
                side_of(&mut change.churn, second).add_all(of_site.churn);
            }
        }
        let mut changes: Vec<SiteChange> = changes.into_values().collect();
        changes.sort_by(|a, b| {
            let rank = |change: &SiteChange| (change.growth(), change.peak.b.bytes);
            // The rest only makes the order deterministic.
            let rest = |change: &SiteChange| (change.end.b.bytes, change.churn.b.allocations);
            let by_name = || a.name.cmp(&b.name).then_with(|| a.stack.cmp(&b.stack));
            rank(b).cmp(&rank(a)).then_with(by_name).then_with(|| rest(a).cmp(&rest(b)))
        });
        comparison.sites.extend(changes);
    }
    Ok(comparison)
}

/// The totals of one device of a recording, and the allocated blocks and allocations of each of its
/// sites.
struct DeviceFigures {
    totals: DeviceTotals,
    sites: BTreeMap<SiteId, SiteFigures>,
}

/// The allocated blocks of one site of a recording at the device's peak of allocated bytes and at
/// the end, and its recorded allocations.
#[derive(Clone, Copy, Default)]
struct SiteFigures {
    peak: BlockTotals,
    end: BlockTotals,
    churn: Churn,
}

impl BlockTotals {
    /// Adds the number and bytes of another site's allocated blocks.
    fn add(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.blocks += other.blocks;
    }
}

/// Returns the value of the second recording if `second` is true, else that of the first.
fn side_of<T>(values: &mut PerRecording<T>, second: bool) -> &mut T {
    if second { &mut values.b } else { &mut values.a }
}

/// Returns the number and bytes of each site's allocated blocks on a device; sites without an
/// allocated block are left out.
fn block_totals_by_site(device: &DeviceState) -> impl Iterator<Item = (SiteId, BlockTotals)> {
    let totals = |site: SiteBytes| (site.site, BlockTotals { bytes: site.bytes, blocks: site.blocks });
    live_bytes_by_site(device).into_iter().map(totals)
}

/// Returns the number and bytes of the recorded allocations by device and site, freed ones
/// included.
fn churn_by_site(recording: &Recording) -> Result<BTreeMap<DeviceId, BTreeMap<SiteId, Churn>>, FormatError> {
    let lifetimes = Lifetimes::from_recording(recording)?;
    let by_site = lifetimes.devices().map(|(id, device)| (id, device.churn_by(0..u64::MAX, |one| one.site)));
    Ok(by_site.collect())
}

/// Returns the figures to compare of every device of a recording; devices without a counter series
/// are left out.
fn device_figures(recording: &Recording) -> Result<BTreeMap<DeviceId, DeviceFigures>, FormatError> {
    let mut replay = Replay::new();
    let mut churn_by_site = churn_by_site(recording)?;
    let mut figures = BTreeMap::new();
    let nothing = DeviceState::default();
    for (id, end) in recording.end_state().devices() {
        let Some(series) = recording.series(id) else { continue };
        let state: &MemoryState = replay.seek(recording, series.peak_allocated().event)?;
        let peak = state.device(id).unwrap_or(&nothing);
        let metrics = metrics_over_time(recording, id)?;
        let mut sites: BTreeMap<SiteId, SiteFigures> = BTreeMap::new();
        block_totals_by_site(peak).for_each(|(site, totals)| sites.entry(site).or_default().peak = totals);
        block_totals_by_site(end).for_each(|(site, totals)| sites.entry(site).or_default().end = totals);
        let mut churn = Churn::default();
        for (site, of_site) in churn_by_site.remove(&id).unwrap_or_default() {
            sites.entry(site).or_default().churn = of_site;
            churn.add_all(of_site);
        }
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
            churn,
        };
        figures.insert(id, DeviceFigures { totals, sites });
    }
    Ok(figures)
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
        churn: PerRecording::default(),
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
        recording_with(file, started, sites, None)
    }

    /// As [`recording_of`]; then the unknown site allocates a block of `later` bytes.
    fn recording_with(file: &str, started: bool, sites: &[(&str, u32, u64)], later: Option<u64>) -> Recording {
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
        if let Some(size) = later {
            let (address, site) = (1 << 20, SiteId(0));
            event(&mut encoder, EventKind::BlockAllocated { address, size, requested: size, stream, pool, site });
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
    fn freed_blocks_count_as_allocations() {
        let (f, last) = (("f", 3, 1024), ("last", 9, 512));
        let comparison =
            compare(&recording(&[f, last]), &recording(&[f, f, last])).expect("both recordings can be read");
        let churn = |allocations, bytes| Churn { allocations, bytes };
        let of_sites: Vec<_> = comparison.sites.iter().map(|site| (site.name.as_str(), site.churn)).collect();
        let expected = [
            ("train.py:3 f", PerRecording { a: churn(1, 1024), b: churn(2, 2048) }),
            ("train.py:9 last", PerRecording { a: churn(1, 512), b: churn(1, 512) }),
        ];
        assert_eq!(of_sites, expected);
        let totals = comparison.devices[0].totals;
        assert_eq!(totals.a.map(|totals| totals.churn), Some(churn(2, 1536)));
        assert_eq!(totals.b.map(|totals| totals.churn), Some(churn(3, 2560)));
    }

    #[test]
    fn site_without_memory_at_peak_and_end_is_listed() {
        // The block of `last` is freed, and the next is larger: the peak comes later.
        let (a, b) = (recording(&[]), recording_with("train.py", false, &[("last", 9, 512)], Some(4096)));
        let comparison = compare(&a, &b).expect("both recordings can be read");
        let last = comparison.sites.iter().find(|site| site.name == "train.py:9 last").expect("it allocates");
        assert_eq!((last.peak, last.end), (PerRecording::default(), PerRecording::default()));
        assert_eq!(last.churn.b, Churn { allocations: 1, bytes: 512 });
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
