//! The recordings of several processes into one, in the order of the machine's clock.
//!
//! An event waits until every process that is connected has said something later, or for [`WAIT_NS`]. What comes too late for its place
//! gets the time of the last event that was told: time never goes back. What a process says is wrong with it alone.
//!
//! A hub that comes later than the programs is told what happened before it by all of them at once. It waits for [`HOLD_NS`] then before
//! it tells anything, so that all have found it, and takes of each only as much as is next.

use std::collections::BTreeSet;

use vramscope_trace::{Annotation, DeviceState, Event, EventKind, RecordingInfo, MemoryState, Sink, SiteId, AnnotationStage};

use super::source::{MAX_WEIGHT, Pending, Shared, Source, What};
use crate::process::Process;

/// How long a process that says nothing holds the others up. A recorder tells what happened every 20 ms; what a busy machine and the way here
/// add is well below.
pub(super) const WAIT_NS: u64 = 200_000_000;
/// How long a hub that began after the first process tells nothing: longer than it takes a process to find it.
pub(super) const HOLD_NS: u64 = 6_000_000_000;
/// How long after its coming a process that still speaks of long ago is waited for, for as long as it speaks.
const CATCH_UP_NS: u64 = 30_000_000_000;
/// Processes that are known, also those that are gone and may come back.
const MAX_PROCESSES: usize = 256;
/// Segments and blocks of all: as many as a full state may have.
const MAX_RANGES: usize = 1 << 20;
/// The mark on its devices when a process has ended.
const ENDED: &str = "process ended";
/// The mark when its connection is lost.
const LOST: &str = "connection to the process lost";

/// Where the one recording goes.
pub(super) trait Output: Sink {
    /// What the recording says of itself from now on.
    fn head(&mut self, info: &RecordingInfo);
    /// The memory after all that it took.
    fn state(&self) -> &MemoryState;
}

/// A connection of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    pub(super) identity: String,
    pub(super) connection: u64,
    /// The number of the chunk to go on with.
    pub(super) resume: u64,
    /// Whether it was here before.
    pub(super) is_back: bool,
}

/// What is to be said of a process whose connection is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) has_ended: bool,
    /// Events of it that are missing.
    pub(super) lost: u64,
}

/// All recordings on their way into one.
#[derive(Debug)]
pub(super) struct Merge<O> {
    pub(super) output: O,
    shared: Shared,
    sources: Vec<Source>,
    /// The time of the last event told.
    last_ns: u64,
    connections: u64,
    /// Nothing is told before.
    hold_until_unix_ns: u64,
}

impl<O: Output> Merge<O> {
    /// Nothing yet; time 0 is there, or where the first process has its own if that is earlier.
    pub(super) fn new(output: O, epoch_unix_ns: u64) -> Self {
        let shared = Shared::new(epoch_unix_ns);
        Self { output, shared, sources: Vec::new(), last_ns: 0, connections: 0, hold_until_unix_ns: 0 }
    }

    fn now_ns(&self, now_unix_ns: u64) -> u64 {
        self.shared.now_ns(now_unix_ns)
    }

    fn place(&self, identity: &str) -> Option<usize> {
        self.sources.iter().position(|source| source.process.identity == identity)
    }

    /// The process of a connection, as long as that is its newest.
    fn source(&mut self, joined: &Joined) -> Option<&mut Source> {
        let place = self.place(&joined.identity)?;
        Some(&mut self.sources[place]).filter(|source| source.connection == Some(joined.connection))
    }

    /// A process is there, for the first time or again.
    ///
    /// # Errors
    /// Where it may not come.
    pub(super) fn join(&mut self, process: Process, now_unix_ns: u64) -> Result<Joined, String> {
        let identity = process.identity.clone();
        let known = self.place(&identity);
        if let Some(failed) = known.and_then(|place| self.sources[place].failed.as_ref()) {
            return Err(failed.clone());
        }
        if known.is_none() {
            self.make_room(now_unix_ns)?;
            let same = |source: &&Source| {
                source.process.rank.is_some()
                    && (source.process.rank, &source.process.host) == (process.rank, &process.host)
            };
            let run = 1 + self.sources.iter().filter(same).count();
            self.sources.push(Source::new(process, run, now_unix_ns));
        }
        self.connections += 1;
        let place = known.unwrap_or(self.sources.len() - 1);
        let source = &mut self.sources[place];
        (source.connection, source.has_ended) = (Some(self.connections), false);
        Ok(Joined { identity, connection: self.connections, resume: source.next, is_back: known.is_some() })
    }

    /// Forgets the process that has been gone for the longest, where there are very many.
    fn make_room(&mut self, now_unix_ns: u64) -> Result<(), String> {
        if self.sources.len() < MAX_PROCESSES {
            return Ok(());
        }
        self.turn(now_unix_ns, true);
        let gone = self.sources.iter().enumerate().filter(|(_, source)| source.connection.is_none());
        let oldest = gone.min_by_key(|(_, source)| source.gone_ns).map(|(place, _)| place);
        let oldest = oldest.ok_or_else(|| format!("the hub has {MAX_PROCESSES} processes, and takes no more"))?;
        let forgotten = self.sources.remove(oldest);
        self.shared.table.forget(&forgotten.numbers);
        Ok(())
    }

    /// Takes whole chunks of a process; the next one will be number `next`. Says whether that was all, or must [go on](Self::go_on).
    ///
    /// # Errors
    /// Where they are no recording, or one of more than there is room for. The process is not listened to any more then; what it said
    /// before stays.
    pub(super) fn take(&mut self, joined: &Joined, bytes: &[u8], next: u64, now_unix_ns: u64) -> Result<bool, String> {
        let source = self.source(joined).ok_or("it has come by another connection since")?;
        source.failed.clone().map_or(Ok(()), Err)?;
        source.push(bytes);
        source.next = next;
        self.go_on(joined, now_unix_ns)
    }

    /// Goes on to take what there was no room for before.
    ///
    /// # Errors
    /// See [`take`](Self::take).
    pub(super) fn go_on(&mut self, joined: &Joined, now_unix_ns: u64) -> Result<bool, String> {
        let taken = self.take_pushed(joined, now_unix_ns);
        if let (Err(reason), Some(source)) = (&taken, self.source(joined)) {
            source.fail(reason.clone());
        }
        taken
    }

    fn take_pushed(&mut self, joined: &Joined, now_unix_ns: u64) -> Result<bool, String> {
        loop {
            let source = self.source(joined).ok_or("it has come by another connection since")?;
            source.failed.clone().map_or(Ok(()), Err)?;
            let place = self.place(&joined.identity).ok_or("it is not known")?;
            let was_early = self.shared.is_early;
            let is_all = self.sources[place].step(now_unix_ns, &mut self.shared)?;
            if self.shared.is_early && !was_early {
                self.hold_until_unix_ns = now_unix_ns.saturating_add(HOLD_NS);
            }
            let told = self.turn(now_unix_ns, false);
            if self.ranges() > MAX_RANGES {
                self.show(place, &MemoryState::default());
                return Err(format!("there are more than {MAX_RANGES} segments and blocks, of which it has too many"));
            }
            if is_all || told == 0 {
                return Ok(is_all);
            }
        }
    }

    fn ranges(&self) -> usize {
        self.output.state().devices().map(|(_, device)| device.blocks().len() + device.segments().len()).sum()
    }

    /// A process says that this was all.
    pub(super) fn end(&mut self, joined: &Joined, now_unix_ns: u64) {
        self.mark(joined, ENDED, now_unix_ns);
        if let Some(source) = self.source(joined) {
            source.has_ended = true;
        }
    }

    /// A connection is gone; `None` where the process has come by another since.
    pub(super) fn leave(&mut self, joined: &Joined, now_unix_ns: u64) -> Option<Left> {
        let has_ended = self.source(joined)?.has_ended;
        if !has_ended {
            self.mark(joined, LOST, now_unix_ns);
        }
        let source = self.source(joined)?;
        (source.connection, source.gone_ns) = (None, now_unix_ns);
        Some(Left { has_ended, lost: source.lost })
    }

    /// Puts a mark on all devices of a process.
    fn mark(&mut self, joined: &Joined, name: &str, now_unix_ns: u64) {
        let (name, now_ns) = (self.shared.table.interner.string(name), self.now_ns(now_unix_ns));
        let Some(source) = self.source(joined) else { return };
        let kind = EventKind::Mark { stage: AnnotationStage::Instant, name, address: 0, site: SiteId(0) };
        for device in source.devices.values().copied().collect::<Vec<_>>() {
            source.put(now_ns, now_ns, What::Event(kind, device));
        }
    }

    /// Puts a mark on the first device of everyone who is connected, where what comes is told now: a moment ago, so that none of what is
    /// still on its way comes late because of it. Says how many that are.
    pub(super) fn mark_all(&mut self, name: &str, now_unix_ns: u64) -> usize {
        if now_unix_ns < self.hold_until_unix_ns {
            return 0;
        }
        let here = self.sources.iter().filter(|source| source.connection.is_some() && !source.has_ended);
        let devices: Vec<_> = here.filter_map(|source| source.devices.values().next().copied()).collect();
        if !devices.is_empty() {
            let name = self.shared.table.interner.string(name);
            self.tell_news();
            self.last_ns = self.last_ns.max(self.now_ns(now_unix_ns).saturating_sub(WAIT_NS));
            let kind = EventKind::Mark { stage: AnnotationStage::Instant, name, address: 0, site: SiteId(0) };
            let time_ns = self.last_ns;
            devices.iter().for_each(|&device| self.output.event(&Event { device, time_ns, kind }));
        }
        devices.len()
    }

    /// Tells what is ready; `all` says that nothing is waited for. Says how much that was.
    pub(super) fn turn(&mut self, now_unix_ns: u64, all: bool) -> u64 {
        if now_unix_ns < self.hold_until_unix_ns && !all {
            return 0;
        }
        self.tell_news();
        let now_ns = self.now_ns(now_unix_ns);
        let mut told = 0;
        while let Some((place, until_ns)) = self.ready(now_ns, all) {
            while let Some(pending) = self.sources[place].pop() {
                self.tell(place, pending);
                told += 1;
                if self.sources[place].pending.front().is_none_or(|next| next.time_ns > until_ns) {
                    break;
                }
            }
            self.refill(place, now_unix_ns);
        }
        told
    }

    /// Takes more of what a process has pushed, where nothing of it waits any more.
    fn refill(&mut self, place: usize, now_unix_ns: u64) {
        let source = &mut self.sources[place];
        if source.has_more && source.pending.is_empty() {
            if let Err(reason) = source.step(now_unix_ns, &mut self.shared) {
                source.fail(reason);
            }
            self.tell_news();
        }
    }

    /// Whose turn it is, and until when.
    fn ready(&self, now_ns: u64, all: bool) -> Option<(usize, u64)> {
        let mut first: Option<(u64, usize)> = None;
        // The next one's beginning, and how far it is known of everyone what comes.
        let (mut second_ns, mut known_ns) = (u64::MAX, u64::MAX);
        // When one that still speaks of long ago last said something.
        let mut spoke_ns = 0;
        let mut is_full = false;
        for (place, source) in self.sources.iter().enumerate() {
            is_full |= source.weight >= MAX_WEIGHT;
            let Some(pending) = source.pending.front() else {
                if source.is_awaited() {
                    known_ns = known_ns.min(source.until_ns);
                    // Of what is told already nothing can be put into its place any more.
                    let is_behind = !source.has_caught_up && source.until_ns >= self.last_ns;
                    if is_behind && now_ns.saturating_sub(self.now_ns(source.joined_unix_ns)) < CATCH_UP_NS {
                        spoke_ns = spoke_ns.max(source.spoke_ns);
                    }
                }
                continue;
            };
            match first {
                Some((time_ns, _)) if time_ns <= pending.time_ns => second_ns = second_ns.min(pending.time_ns),
                _ => {
                    second_ns = first.map_or(second_ns, |(time_ns, _)| time_ns);
                    first = Some((pending.time_ns, place));
                }
            }
        }
        let (time_ns, place) = first?;
        if all {
            return Some((place, second_ns));
        }
        let arrived_ns = self.sources[place].pending.front()?.arrived_ns;
        // One by one, where others are not waited for any longer.
        let is_heard = now_ns.saturating_sub(spoke_ns) < WAIT_NS;
        let is_due = !is_heard && (is_full || now_ns.saturating_sub(arrived_ns) >= WAIT_NS);
        (time_ns <= known_ns || is_due).then_some((place, second_ns.min(known_ns)))
    }

    /// Says what is known by now of the devices, and what was defined.
    fn tell_news(&mut self) {
        if std::mem::take(&mut self.shared.is_news) {
            self.output.head(&self.info());
        }
        for definition in self.shared.table.interner.take_new() {
            self.output.define(&definition);
        }
    }

    fn info(&self) -> RecordingInfo {
        let mut programs: Vec<&str> = Vec::new();
        for source in &self.sources {
            if !programs.contains(&source.process.program.as_str()) && programs.len() < 3 {
                programs.push(&source.process.program);
            }
        }
        RecordingInfo {
            source: if programs.is_empty() { "vramscope serve".to_owned() } else { programs.join(", ") },
            writer: concat!("vramscope-collector ", env!("CARGO_PKG_VERSION")).to_owned(),
            epoch_unix_ns: self.shared.epoch_unix_ns,
            alloc_conf: self.shared.alloc_conf.clone().unwrap_or_default(),
            devices: self.shared.devices.values().cloned().collect(),
            ..RecordingInfo::default()
        }
    }

    fn tell(&mut self, place: usize, pending: Pending) {
        self.last_ns = self.last_ns.max(pending.time_ns);
        let time_ns = self.last_ns;
        match pending.what {
            What::Event(kind, device) => self.output.event(&Event { device, time_ns, kind }),
            What::Annotation(annotation) => {
                let at_event = self.output.state().event();
                self.output.annotation(&Annotation { at_event, ..annotation });
            }
            What::State { state, lost } => {
                if lost > 0
                    && let Some(&device) = self.sources[place].devices.values().next()
                {
                    self.output.event(&Event { device, time_ns, kind: EventKind::Gap { lost } });
                }
                self.show(place, &state);
            }
        }
    }

    /// The memory of a process is as it says, where that is not known yet; all other memory is as it was.
    fn show(&mut self, place: usize, said: &MemoryState) {
        let source = &self.sources[place];
        let nothing = DeviceState::default();
        let known = self.output.state();
        let each = source.devices.iter().map(|(&theirs, &ours)| (ours, said.device(theirs).unwrap_or(&nothing)));
        if each.clone().all(|(ours, said)| is_known(known.device(ours).unwrap_or(&nothing), said)) {
            return;
        }
        let mut state = known.clone();
        let (event, now_ns) = (state.event(), self.last_ns);
        for (ours, said) in each {
            let known = known.device(ours).unwrap_or(&nothing);
            *state.device_mut(ours) = retold(source, said, known, event, now_ns);
        }
        state.set_time_ns(state.time_ns().max(now_ns));
        self.output.full_state(&state);
    }

    /// How many processes are connected.
    pub(super) fn connected(&self) -> usize {
        self.sources.iter().filter(|source| source.connection.is_some()).count()
    }

    /// The devices of those that are connected and go on.
    pub(super) fn here(&self) -> BTreeSet<u16> {
        let here = self.sources.iter().filter(|source| source.connection.is_some() && !source.has_ended);
        here.flat_map(|source| source.devices.values().map(|device| device.0)).collect()
    }

    /// Nothing more will come: tells the rest.
    pub(super) fn finish(mut self, now_unix_ns: u64) -> O {
        for place in 0..self.sources.len() {
            // What is wrong with the rest of it nobody is there to hear.
            while let Ok(false) = self.sources[place].step(now_unix_ns, &mut self.shared) {
                self.turn(now_unix_ns, true);
            }
        }
        self.turn(now_unix_ns, true);
        self.output
    }
}

/// Whether what is said of a device's memory is what is known of it.
fn is_known(known: &DeviceState, said: &DeviceState) -> bool {
    known.counters() == said.counters()
        && known.sample() == said.sample()
        && known.segments().len() == said.segments().len()
        && known.blocks().len() == said.blocks().len()
        && known.segments().zip(said.segments()).all(|(known, said)| {
            (known.address, known.size, known.stream, known.pool, known.expandable)
                == (said.address, said.size, said.stream, said.pool, said.expandable)
        })
        && known.blocks().zip(said.blocks()).all(|(known, said)| {
            (known.address, known.size, known.requested, known.stream, known.pool, known.pending_free)
                == (said.address, said.size, said.requested, said.stream, said.pool, said.pending_free)
        })
}

/// What a process says of a device, in the numbers and on the clock of all. What was known before keeps its beginning; all else began at
/// the latest with this event.
fn retold(source: &Source, said: &DeviceState, known: &DeviceState, event: u64, now_ns: u64) -> DeviceState {
    said.with_remapped_ids(
        |segment| {
            let before = known.segment_at(segment.address).filter(|known| known.address == segment.address);
            (source.numbers.site(segment.site), before.map_or(event, |known| known.since_event))
        },
        |block| {
            let (site, since_ns) = (source.numbers.site(block.site), source.time(block.since_ns, now_ns));
            let before = known.block(block.address).filter(|known| {
                known.site == site && known.size == block.size && known.since_ns.abs_diff(since_ns) <= WAIT_NS
            });
            before.map_or((site, event, since_ns), |known| (site, known.since_event, known.since_ns))
        },
    )
}

/// What a device is called here that a process calls otherwise.
#[cfg(test)]
impl<O> Merge<O> {
    pub(super) fn ours(&self, identity: &str, theirs: u16) -> Option<vramscope_trace::DeviceId> {
        let source = self.sources.iter().find(|source| source.process.identity == identity)?;
        source.devices.get(&vramscope_trace::DeviceId(theirs)).copied()
    }
}
