//! What two recordings differ in: the totals of each device, and what each site holds, at the peak and at the end.
//!
//! Numbers of sites mean nothing in another recording, so sites are matched by what they say: the scope, the category and the whole
//! call stack. Between two runs code changes, lines move, and programs and libraries lie elsewhere; so a site that only one of the
//! recordings has is matched with one that only the other has where the two differ in nothing but paths, or else in nothing but line
//! numbers, or else in nothing but those; what started a script does not count then.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::device_state::DeviceState;
use crate::error::FormatError;
use crate::event::DeviceId;
use crate::holders::{frame_name, holders, site_name};
use crate::recording::Recording;
use crate::replay::Replay;
use crate::site::{Category, Definitions, Frame, Interner, Site, SiteId, Stack, StackId};
use crate::state::MemoryState;

/// Frames of a call stack that are told; whole stacks are matched.
const FRAMES: usize = 64;

/// Two values of one thing: of the first recording and of the second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair<T> {
    /// In the first recording.
    pub a: T,
    /// In the second recording.
    pub b: T,
}

/// The totals of a device in one recording.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// How many events are the device's.
    pub events: u64,
    /// Allocated bytes at the end.
    pub allocated_bytes: u64,
    /// Reserved bytes at the end.
    pub reserved_bytes: u64,
    /// The most allocated bytes.
    pub peak_allocated_bytes: u64,
    /// The most reserved bytes.
    pub peak_reserved_bytes: u64,
    /// How many requests failed.
    pub ooms: u64,
    /// 1 - largest free block / free bytes in segments, at the first moment of the most allocated bytes; 0 to 1.
    pub peak_fragmentation: f64,
    /// The same at the end.
    pub fragmentation: f64,
}

/// What a site holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of its allocated blocks.
    pub bytes: u64,
    /// How many they are.
    pub blocks: u64,
}

/// A device in both recordings; `None` where one has not heard of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceChange {
    /// The device.
    pub device: DeviceId,
    /// Its totals.
    pub totals: Pair<Option<Totals>>,
}

/// What a site holds of a device's memory in both recordings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteChange {
    /// The device.
    pub device: DeviceId,
    /// The site in one line, see [`site_name`]; as the second recording has it, if it has it.
    pub name: String,
    /// The scope path.
    pub scope: String,
    /// What the memory is for.
    pub category: Category,
    /// The innermost frames of the call stack, one line each, innermost first.
    pub stack: Vec<String>,
    /// At the first moment of the device's most allocated bytes.
    pub peak: Pair<Held>,
    /// At the end.
    pub end: Pair<Held>,
}

impl SiteChange {
    /// Bytes by which it grew at the peak, and at the end.
    #[must_use]
    pub fn growth(&self) -> (i128, i128) {
        let grown = |pair: &Pair<Held>| i128::from(pair.b.bytes) - i128::from(pair.a.bytes);
        (grown(&self.peak), grown(&self.end))
    }
}

/// What two recordings differ in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The devices of both, by number.
    pub devices: Vec<DeviceChange>,
    /// The sites that hold memory in either recording at its peak or its end, by device; those that grew most at the peak come first.
    pub sites: Vec<SiteChange>,
}

/// Compares two recordings.
///
/// # Errors
/// If a chunk cannot be read, which a [`Recording`] that took it in rules out.
pub fn compare(a: &Recording, b: &Recording) -> Result<Comparison, FormatError> {
    let keys = matched(a.definitions(), b.definitions());
    let moments = Pair { a: moments(a)?, b: moments(b)? };
    let mut comparison = Comparison::default();
    let devices: BTreeSet<DeviceId> = moments.a.keys().chain(moments.b.keys()).copied().collect();
    for device in devices {
        let of = |moments: &BTreeMap<DeviceId, Moments>| moments.get(&device).map(|moments| moments.totals);
        comparison.devices.push(DeviceChange { device, totals: Pair { a: of(&moments.a), b: of(&moments.b) } });
        let mut changes: HashMap<SiteId, SiteChange> = HashMap::new();
        // The second recording comes first: where both have a site, it is told as that one has it.
        for (recording, moments, keys, second) in [(b, &moments.b, &keys.b, true), (a, &moments.a, &keys.a, false)] {
            let Some(moments) = moments.get(&device) else { continue };
            for (held, at_peak) in [(&moments.peak, true), (&moments.end, false)] {
                for (&site, held) in held {
                    let key = keys.get(site.0 as usize).copied().unwrap_or_default();
                    let change = changes.entry(key).or_insert_with(|| described(device, recording.definitions(), site));
                    let pair = if at_peak { &mut change.peak } else { &mut change.end };
                    let sum = if second { &mut pair.b } else { &mut pair.a };
                    sum.bytes = sum.bytes.saturating_add(held.bytes);
                    sum.blocks += held.blocks;
                }
            }
        }
        let mut changes: Vec<SiteChange> = changes.into_values().collect();
        changes.sort_by(|a, b| {
            let rank = |change: &SiteChange| (change.growth(), change.peak.b.bytes);
            // The rest only makes the order the same each time.
            let rest = |change: &SiteChange| (change.name.clone(), change.stack.clone(), change.end.b.bytes);
            rank(b).cmp(&rank(a)).then_with(|| rest(a).cmp(&rest(b)))
        });
        comparison.sites.extend(changes);
    }
    Ok(comparison)
}

/// A device of one recording at its peak and its end.
struct Moments {
    totals: Totals,
    peak: BTreeMap<SiteId, Held>,
    end: BTreeMap<SiteId, Held>,
}

fn held(device: &DeviceState) -> BTreeMap<SiteId, Held> {
    let held = |holder: crate::Holder| (holder.site, Held { bytes: holder.bytes, blocks: holder.blocks });
    holders(device).into_iter().map(held).collect()
}

fn moments(recording: &Recording) -> Result<BTreeMap<DeviceId, Moments>, FormatError> {
    let mut replay = Replay::new();
    let mut moments = BTreeMap::new();
    let nothing = DeviceState::default();
    for (id, end) in recording.end_state().devices() {
        let Some(series) = recording.series(id) else { continue };
        let state: &MemoryState = replay.seek(recording, series.peak_allocated().event)?;
        let peak = state.device(id).unwrap_or(&nothing);
        let totals = Totals {
            events: end.events(),
            allocated_bytes: end.counters().allocated,
            reserved_bytes: end.counters().reserved,
            peak_allocated_bytes: series.peak_allocated().bytes,
            peak_reserved_bytes: series.peak_reserved().bytes,
            ooms: end.ooms(),
            peak_fragmentation: peak.free_space().fragmentation(),
            fragmentation: end.free_space().fragmentation(),
        };
        moments.insert(id, Moments { totals, peak: held(peak), end: held(end) });
    }
    Ok(moments)
}

fn described(device: DeviceId, definitions: &Definitions, id: SiteId) -> SiteChange {
    let site = definitions.site(id);
    let stack = definitions.stack(site.stack).take(FRAMES);
    SiteChange {
        device,
        name: site_name(definitions, id),
        scope: definitions.string(site.scope).to_owned(),
        category: site.category,
        stack: stack.map(|frame| frame_name(definitions, frame, false)).collect(),
        peak: Pair::default(),
        end: Pair::default(),
    }
}

/// What of a frame is compared beside the function.
#[derive(Clone, Copy)]
struct Compared {
    files: bool,
    lines: bool,
    /// What called the script, too: how it was started.
    start: bool,
}

/// The whole frame, and then less and less of it.
const EXACT: Compared = Compared { files: true, lines: true, start: true };
const LOOSER: [Compared; 3] = [
    Compared { files: false, lines: true, start: false },
    Compared { files: true, lines: false, start: false },
    Compared { files: false, lines: false, start: false },
];
/// What Python calls the code of a file outside of its functions. The frames around it are those of what runs the script.
const SCRIPT: &str = "<module>";

/// The number of each site of both recordings in a numbering that they have in common.
fn matched(a: &Definitions, b: &Definitions) -> Pair<Vec<SiteId>> {
    let numbered = |compared: Compared| {
        let mut common = Interner::default();
        let mut of = |definitions: &Definitions| Common::new(&mut common, definitions, compared).sites();
        Pair { a: of(a), b: of(b) }
    };
    let mut keys = numbered(EXACT);
    for compared in LOOSER {
        join(&mut keys, &numbered(compared));
    }
    keys
}

/// Gives sites that only one recording has by `keys` the same number, where the other has such by `loose`.
fn join(keys: &mut Pair<Vec<SiteId>>, loose: &Pair<Vec<SiteId>>) {
    let in_a: HashSet<SiteId> = keys.a.iter().copied().collect();
    let in_b: HashSet<SiteId> = keys.b.iter().copied().collect();
    // Several of them are told as the first.
    let mut moved: HashMap<SiteId, SiteId> = HashMap::new();
    for (key, loose) in keys.b.iter().zip(&loose.b).filter(|(key, _)| !in_a.contains(key)) {
        moved.entry(*loose).or_insert(*key);
    }
    let mut found = HashSet::new();
    for (key, loose) in keys.a.iter_mut().zip(&loose.a) {
        if !in_b.contains(key)
            && let Some(&to) = moved.get(loose)
        {
            *key = to;
            found.insert(*loose);
        }
    }
    for (key, loose) in keys.b.iter_mut().zip(&loose.b) {
        if !in_a.contains(key) && found.contains(loose) {
            *key = moved[loose];
        }
    }
}

/// Numbers a recording's definitions anew, together with those of another one. Each stack is looked at once, however deep.
struct Common<'a> {
    interner: &'a mut Interner,
    definitions: &'a Definitions,
    compared: Compared,
    stacks: HashMap<StackId, StackId>,
}

impl<'a> Common<'a> {
    fn new(interner: &'a mut Interner, definitions: &'a Definitions, compared: Compared) -> Self {
        Self { interner, definitions, compared, stacks: HashMap::from([(StackId(0), StackId(0))]) }
    }

    /// The common number of every site, the unknown one first.
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
        // Down to the first caller that is known, and back up.
        let mut links: Vec<(StackId, Stack)> = Vec::new();
        let mut at = id;
        let mut caller = loop {
            if let Some(&known) = self.stacks.get(&at) {
                break known;
            }
            let Some(link) = self.definitions.link(at) else { break StackId(0) };
            links.push((at, link));
            at = link.caller;
        };
        while let Some((id, link)) = links.pop() {
            let frame = self.definitions.frame(link.frame).unwrap_or_default();
            let function = self.definitions.string(frame.function);
            if !self.compared.start && function == SCRIPT {
                caller = StackId(0);
            }
            let function = self.interner.string(function);
            let file = if self.compared.files { self.definitions.string(frame.file) } else { "" };
            let file = self.interner.string(file);
            let line = if self.compared.lines { frame.line } else { 0 };
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
    use crate::{Encoder, Event, EventKind, Info, Pool, Sink, StreamId};

    fn recording(sites: &[(&str, u32, u64)]) -> Recording {
        recording_of("train.py", false, sites)
    }

    /// A recording of one block for each of `sites` in a file, by function, line and bytes; the last one is freed in the end. A program
    /// may be `started` by another.
    fn recording_of(file: &str, started: bool, sites: &[(&str, u32, u64)]) -> Recording {
        let (mut encoder, mut interner) = (Encoder::new(&Info::default()), Interner::default());
        let (stream, pool) = (StreamId(0), Pool::default());
        let event = |encoder: &mut Encoder, kind| encoder.event(&Event { device: DeviceId(0), time_ns: 1, kind });
        let whole = EventKind::SegmentAllocated { address: 1 << 20, size: 1 << 20, stream, pool, site: SiteId(0) };
        event(&mut encoder, whole);
        let mut address = 1 << 20;
        for &(function, line, size) in sites {
            let file = interner.string(file);
            let [main, function, run] = [SCRIPT, function, "run_path"].map(|name| interner.string(name));
            let outer = interner.frame(Frame { function: main, file, line: 1 });
            let inner = interner.frame(Frame { function, file, line });
            let start = interner.frame(Frame { function: run, file, line: 286 });
            let start = if started { interner.stack(start, StackId(0)) } else { StackId(0) };
            let outer = interner.stack(outer, start);
            let stack = interner.stack(inner, outer);
            let site = interner.site(Site { stack, ..Site::default() });
            for definition in interner.take_fresh() {
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
            recording.push(&chunk.bytes).expect("a recording");
        }
        recording
    }

    /// Compares, and checks name, bytes at the peaks and bytes at the ends.
    #[track_caller]
    fn check(a: &[(&str, u32, u64)], b: &[(&str, u32, u64)], expected: &[(&str, [u64; 2], [u64; 2])]) {
        let comparison = compare(&recording(a), &recording(b)).expect("both can be read");
        let told: Vec<_> = comparison
            .sites
            .iter()
            .map(|site| {
                let bytes = |pair: Pair<Held>| [pair.a.bytes, pair.b.bytes];
                (site.name.as_str(), bytes(site.peak), bytes(site.end))
            })
            .collect();
        assert_eq!(told, expected);
    }

    #[test]
    fn sites_are_matched_by_what_they_say() {
        let (f, g, last) = (("f", 3, 1024), ("g", 4, 512), ("last", 9, 512));
        let lost = ("train.py:9 last", [512, 512], [0, 0]);
        // In another order, and so under other numbers.
        check(
            &[f, g, last],
            &[g, f, f, last],
            &[("train.py:3 f", [1024, 2048], [1024, 2048]), ("train.py:4 g", [512, 512], [512, 512]), lost],
        );
        check(&[f, last], &[last], &[lost, ("train.py:3 f", [1024, 0], [1024, 0])]);
    }

    #[test]
    fn lines_may_move() {
        let last = ("last", 9, 512);
        let lost = ("train.py:9 last", [512, 512], [0, 0]);
        let moved = ("train.py:5 f", [1024, 1024], [1024, 1024]);
        check(&[("f", 3, 1024), last], &[("f", 5, 1024), last], &[moved, lost]);
        // Both have line 3: what stands on line 5 is another site.
        check(
            &[("f", 3, 1024), last],
            &[("f", 3, 1024), ("f", 5, 2048), last],
            &[("train.py:5 f", [0, 2048], [0, 2048]), ("train.py:3 f", [1024, 1024], [1024, 1024]), lost],
        );
        // Two became one.
        check(
            &[("f", 3, 1024), ("f", 4, 512), last],
            &[("f", 6, 2048), last],
            &[("train.py:6 f", [1536, 2048], [1536, 2048]), lost],
        );
    }

    #[test]
    fn programs_may_move() {
        let lines = |add: u32| [("f", 3 + add, 1024), ("f", 4 + add, 2048), ("last", 9 + add, 512)];
        let here = recording_of("/home/a/train.py", false, &lines(0));
        for (there, sites) in [
            (recording_of("/opt/run.py", false, &lines(0)), 3),
            (recording_of("/opt/run.py", true, &lines(0)), 3),
            (recording_of("/opt/run.py", true, &lines(20)), 2),
        ] {
            let comparison = compare(&here, &there).expect("both can be read");
            assert_eq!(comparison.sites.len(), sites, "{comparison:?}");
            assert!(comparison.sites.iter().all(|site| site.growth() == (0, 0)), "{comparison:?}");
            assert!(comparison.sites.iter().all(|site| site.name.starts_with("run.py")), "{comparison:?}");
        }
    }

    #[test]
    fn a_device_may_be_in_one_of_them_only() {
        let comparison = compare(&Recording::new(), &recording(&[("f", 3, 1024)])).expect("both can be read");
        let [device] = comparison.devices.as_slice() else { panic!("{comparison:?}") };
        assert_eq!(device.totals.a, None);
        let totals = device.totals.b.expect("the second has it");
        assert_eq!((totals.events, totals.peak_allocated_bytes, totals.allocated_bytes), (3, 1024, 0));
        assert_eq!((totals.peak_fragmentation, totals.ooms), (0.0, 0));
    }
}
