//! The difference between two recordings: totals of each device, and memory of each site, at the
//! peak and at the end.
//!
//! Site numbers are only valid within one recording, so sites are matched by content: scope,
//! category and whole call stack. Between two runs code changes, lines move, and files are in other
//! directories. A site that only one recording has is therefore matched with one that only the
//! other has, if the two differ only in file paths, else only in line numbers, else only in both.
//! These looser comparisons ignore how the script was started.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::device_state::DeviceState;
use crate::error::FormatError;
use crate::event::DeviceId;
use crate::live_bytes_by_site::{SiteBytes, frame_name, live_bytes_by_site, site_name};
use crate::memory_state::MemoryState;
use crate::recording::{Recording, Replay};
use crate::site::{Category, Definitions, Frame, Interner, Site, SiteId, Stack, StackId};

/// Most frames of a call stack in a [`SiteChange`]. Matching compares whole stacks.
const SHOWN_FRAMES: usize = 64;

/// A value of the first recording and the corresponding value of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerRecording<T> {
    /// The value in the first recording.
    pub a: T,
    /// The value in the second recording.
    pub b: T,
}

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

/// A device of one recording at its peak of allocated bytes and at the end.
struct PeakAndEnd {
    totals: DeviceTotals,
    peak: BTreeMap<SiteId, BlockTotals>,
    end: BTreeMap<SiteId, BlockTotals>,
}

fn block_totals_by_site(device: &DeviceState) -> BTreeMap<SiteId, BlockTotals> {
    let totals = |site: SiteBytes| (site.site, BlockTotals { bytes: site.bytes, blocks: site.blocks });
    live_bytes_by_site(device).into_iter().map(totals).collect()
}

fn peak_and_end(recording: &Recording) -> Result<BTreeMap<DeviceId, PeakAndEnd>, FormatError> {
    let mut replay = Replay::new();
    let mut peak_and_end = BTreeMap::new();
    let nothing = DeviceState::default();
    for (id, end) in recording.end_state().devices() {
        let Some(series) = recording.series(id) else { continue };
        let state: &MemoryState = replay.seek(recording, series.peak_allocated().event)?;
        let peak = state.device(id).unwrap_or(&nothing);
        let totals = DeviceTotals {
            events: end.events(),
            allocated_bytes: end.counters().allocated,
            reserved_bytes: end.counters().reserved,
            peak_allocated_bytes: series.peak_allocated().bytes,
            peak_reserved_bytes: series.peak_reserved().bytes,
            ooms: end.ooms(),
            peak_fragmentation: peak.free_space().fragmentation(),
            fragmentation: end.free_space().fragmentation(),
        };
        peak_and_end
            .insert(id, PeakAndEnd { totals, peak: block_totals_by_site(peak), end: block_totals_by_site(end) });
    }
    Ok(peak_and_end)
}

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

/// Which parts of a stack are compared besides the functions.
#[derive(Clone, Copy)]
struct FrameMatch {
    files: bool,
    lines: bool,
    /// Whether the frames that started the script are compared, too.
    launcher: bool,
}

/// Compares everything.
const EXACT_MATCH: FrameMatch = FrameMatch { files: true, lines: true, launcher: true };
/// Comparisons for the sites that the exact one does not match, in this order.
const LOOSER_MATCHES: [FrameMatch; 3] = [
    FrameMatch { files: false, lines: true, launcher: false },
    FrameMatch { files: true, lines: false, launcher: false },
    FrameMatch { files: false, lines: false, launcher: false },
];
/// Python's function name for the top level of a file. Its callers are what started the script.
const TOP_LEVEL: &str = "<module>";

/// Returns, for each site number of both recordings, a number that is equal for matching sites.
fn shared_site_numbers(a: &Definitions, b: &Definitions) -> PerRecording<Vec<SiteId>> {
    let numbered = |frame_match: FrameMatch| {
        let mut shared = Interner::default();
        let mut of = |definitions: &Definitions| SharedNumbering::new(&mut shared, definitions, frame_match).sites();
        PerRecording { a: of(a), b: of(b) }
    };
    let mut keys = numbered(EXACT_MATCH);
    for frame_match in LOOSER_MATCHES {
        match_remaining(&mut keys, &numbered(frame_match));
    }
    keys
}

/// Gives sites without a match in `keys` the same key if `loose` matches them.
fn match_remaining(keys: &mut PerRecording<Vec<SiteId>>, loose: &PerRecording<Vec<SiteId>>) {
    let in_a: HashSet<SiteId> = keys.a.iter().copied().collect();
    let in_b: HashSet<SiteId> = keys.b.iter().copied().collect();
    // If several match, the first stands for all.
    let mut key_in_b: HashMap<SiteId, SiteId> = HashMap::new();
    for (key, loose) in keys.b.iter().zip(&loose.b).filter(|(key, _)| !in_a.contains(key)) {
        key_in_b.entry(*loose).or_insert(*key);
    }
    let mut matched = HashSet::new();
    for (key, loose) in keys.a.iter_mut().zip(&loose.a) {
        if !in_b.contains(key)
            && let Some(&to) = key_in_b.get(loose)
        {
            *key = to;
            matched.insert(*loose);
        }
    }
    for (key, loose) in keys.b.iter_mut().zip(&loose.b) {
        if !in_a.contains(key) && matched.contains(loose) {
            *key = key_in_b[loose];
        }
    }
}

/// Assigns shared numbers to the definitions of a recording, by content. Each stack is visited
/// once.
struct SharedNumbering<'a> {
    interner: &'a mut Interner,
    definitions: &'a Definitions,
    frame_match: FrameMatch,
    stacks: HashMap<StackId, StackId>,
}

impl<'a> SharedNumbering<'a> {
    fn new(interner: &'a mut Interner, definitions: &'a Definitions, frame_match: FrameMatch) -> Self {
        Self { interner, definitions, frame_match, stacks: HashMap::from([(StackId(0), StackId(0))]) }
    }

    /// Returns the shared number of every site, beginning with the unknown site.
    fn sites(mut self) -> Vec<SiteId> {
        let count = u32::try_from(self.definitions.site_count()).unwrap_or(u32::MAX);
        (0..=count).map(|id| self.site(SiteId(id))).collect()
    }

    fn site(&mut self, id: SiteId) -> SiteId {
        let Site { stack, scope, category, compile_context } = self.definitions.site(id);
        let stack = self.stack(stack);
        let scope = self.interner.string(self.definitions.string(scope));
        let compile_context = self.interner.string(self.definitions.string(compile_context));
        self.interner.site(Site { stack, scope, category, compile_context })
    }

    fn stack(&mut self, id: StackId) -> StackId {
        // Walk outwards to the first numbered caller, then number the stacks on the way back.
        let mut links: Vec<(StackId, Stack)> = Vec::new();
        let mut at = id;
        let mut caller = loop {
            if let Some(&known) = self.stacks.get(&at) {
                break known;
            }
            let Some(link) = self.definitions.stack_definition(at) else { break StackId(0) };
            links.push((at, link));
            at = link.caller;
        };
        while let Some((id, link)) = links.pop() {
            let frame = self.definitions.frame(link.frame).unwrap_or_default();
            let function = self.definitions.string(frame.function);
            if !self.frame_match.launcher && function == TOP_LEVEL {
                caller = StackId(0);
            }
            let function = self.interner.string(function);
            let file = if self.frame_match.files { self.definitions.string(frame.file) } else { "" };
            let file = self.interner.string(file);
            let line = if self.frame_match.lines { frame.line } else { 0 };
            let frame = self.interner.frame(Frame { function, file, line });
            caller = self.interner.stack(frame, caller);
            self.stacks.insert(id, caller);
        }
        caller
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::Encoder;
    use crate::event::{Event, EventKind, PoolKey, StreamId};
    use crate::info::RecordingInfo;
    use crate::sink::Sink;

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
}
