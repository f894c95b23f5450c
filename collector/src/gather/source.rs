//! One process's recording, as it comes: what it says, in the numbers and on the clock of all.

use std::collections::{BTreeMap, VecDeque};

use vramscope_trace::{
    Annotation, Decoder, DeviceId, DeviceInfo, Event, EventKind, RecordingInfo, DecodedItem, MemoryState, SiteId, StringId,
};

use super::numbers::{Numbers, Table};
use crate::process::{Process, plain};

/// Devices of one process.
const MAX_DEVICES: usize = 64;
/// What may wait of one process: events, or segments and blocks of states.
pub(super) const MAX_WEIGHT: usize = 1 << 16;
/// Devices of all processes that ever were.
const MAX_ALL_DEVICES: usize = 2048;
/// What is less than so long ago is now.
const EARLY_NS: u64 = 1_000_000_000;
/// How long before the hub the first process may have begun: a month. A clock that says more is wrong.
const MAX_EARLIER_NS: u64 = 31 * 24 * 3600 * 1_000_000_000;

/// Something that waits for its turn.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) time_ns: u64,
    /// When it came.
    pub(super) arrived_ns: u64,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    Event(EventKind, DeviceId),
    /// The process's memory as it says itself. `lost` of its events are missing before.
    State {
        state: Box<MemoryState>,
        lost: u64,
    },
    Annotation(Annotation),
}

impl What {
    fn weight(&self) -> usize {
        match self {
            Self::State { state, .. } => {
                state.devices().map(|(_, device)| device.blocks().len() + device.segments().len()).sum::<usize>() + 1
            }
            Self::Event(..) | Self::Annotation(_) => 1,
        }
    }
}

/// What all processes share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) table: Table,
    /// The devices of all.
    pub(super) devices: BTreeMap<u16, DeviceInfo>,
    /// Whether more is known than was told.
    pub(super) is_news: bool,
    /// Time 0 of all, in nanoseconds since 1970.
    pub(super) epoch_unix_ns: u64,
    /// Whether that is settled.
    has_begun: bool,
    /// Whether the first process began well before the hub.
    pub(super) is_early: bool,
    /// The allocator's settings, where all have the same.
    pub(super) alloc_conf: Option<String>,
}

impl Shared {
    pub(super) fn new(epoch_unix_ns: u64) -> Self {
        Self {
            table: Table::default(),
            devices: BTreeMap::new(),
            is_news: true,
            epoch_unix_ns,
            has_begun: false,
            is_early: false,
            alloc_conf: None,
        }
    }

    /// A number for one more device: that of its process's rank, so that they stand in that order; else the one after all others.
    fn number(&self, rank: Option<u32>) -> u16 {
        let rank = rank.and_then(|rank| u16::try_from(rank).ok());
        let of_rank = rank.filter(|&rank| usize::from(rank) < MAX_ALL_DEVICES && !self.devices.contains_key(&rank));
        of_rank.unwrap_or_else(|| self.devices.keys().next_back().map_or(0, |last| last + 1))
    }

    /// A time since 1970 on the clock of all.
    pub(super) fn now_ns(&self, unix_ns: u64) -> u64 {
        unix_ns.saturating_sub(self.epoch_unix_ns)
    }

    /// The first process has its time 0 there; where that is before all, it is everyone's.
    fn begin_at(&mut self, epoch_unix_ns: u64) {
        let earlier_ns = self.epoch_unix_ns.saturating_sub(epoch_unix_ns);
        if !self.has_begun && (1..MAX_EARLIER_NS).contains(&earlier_ns) {
            self.epoch_unix_ns = epoch_unix_ns;
            (self.is_news, self.is_early) = (true, earlier_ns >= EARLY_NS);
        }
        self.has_begun = true;
    }
}

/// A process's recording.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) process: Process,
    /// What its devices are called by: its rank, and which of several runs it is.
    title: String,
    decoder: Decoder,
    pub(super) numbers: Numbers,
    /// What it says of its devices.
    told: Vec<DeviceInfo>,
    /// What those of them are called here where something happened.
    pub(super) devices: BTreeMap<DeviceId, DeviceId>,
    /// From its time 0 to that of all.
    shift_ns: Option<i128>,
    /// The number of the chunk that it should go on with.
    pub(super) next: u64,
    /// The number of its next event, in its own recording.
    next_event: Option<u64>,
    pub(super) pending: VecDeque<Pending>,
    pub(super) weight: usize,
    /// The time of the newest that came of it.
    pub(super) until_ns: u64,
    /// When it came for the first time.
    pub(super) joined_unix_ns: u64,
    /// When anything last came of it.
    pub(super) spoke_ns: u64,
    /// Whether there was no room for all that was pushed.
    pub(super) has_more: bool,
    /// Whether it has said anything of now.
    pub(super) has_caught_up: bool,
    /// Which of its connections may speak; `None` while there is none.
    pub(super) connection: Option<u64>,
    /// When the last one ended.
    pub(super) gone_ns: u64,
    /// It has said that this is all, or what came of it could not be understood.
    pub(super) has_ended: bool,
    pub(super) failed: Option<String>,
    /// Events that are missing.
    pub(super) lost: u64,
    /// None are, from its first event on.
    is_whole: bool,
}

impl Source {
    /// A process that is there for the first time; the `run`th one of its rank.
    pub(super) fn new(process: Process, run: usize, joined_unix_ns: u64) -> Self {
        let title = match run {
            1 => process.short(),
            _ => format!("{}, run {run}", process.short()),
        };
        Self {
            process,
            title,
            decoder: Decoder::new(),
            numbers: Numbers::default(),
            told: Vec::new(),
            devices: BTreeMap::new(),
            shift_ns: None,
            next: 0,
            next_event: None,
            pending: VecDeque::new(),
            weight: 0,
            until_ns: 0,
            joined_unix_ns,
            spoke_ns: 0,
            has_more: false,
            has_caught_up: false,
            connection: None,
            gone_ns: 0,
            has_ended: false,
            failed: None,
            lost: 0,
            is_whole: true,
        }
    }

    /// Takes bytes, which must be whole chunks; what they say is then taken by [`step`](Self::step).
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// Takes what was pushed, as much of it as may wait. Says whether that was all. What comes now and says that it is of later is of
    /// now.
    ///
    /// # Errors
    /// Where it is no recording, or one of more than there is room for; nothing more can be taken then.
    pub(super) fn step(&mut self, now_unix_ns: u64, shared: &mut Shared) -> Result<bool, String> {
        self.has_more = true;
        while self.weight < MAX_WEIGHT {
            // The first process may settle what time 0 is.
            let now_ns = shared.now_ns(now_unix_ns);
            let Some(item) = self.decoder.next_item().map_err(|error| error.to_string())? else {
                self.has_more = false;
                return self.decoder.finish().map(|()| true).map_err(|error| error.to_string());
            };
            match item {
                DecodedItem::Info(info) => self.info(&info, shared)?,
                DecodedItem::Define(definition) => self.numbers.define(&definition, &mut shared.table),
                DecodedItem::FullState(state) => self.state(state, now_ns, shared)?,
                DecodedItem::Event(event) => self.event(&event, now_ns, shared)?,
                DecodedItem::Annotation(annotation) => {
                    let device = self.device(annotation.device, shared)?;
                    let (name, time_ns) = (self.numbers.string(annotation.name), self.time(annotation.time_ns, now_ns));
                    // Where it stands is known when it is its turn.
                    let annotation = Annotation { device, name, time_ns, ..annotation };
                    self.put(self.until_ns, now_ns, What::Annotation(annotation));
                }
            }
        }
        Ok(false)
    }

    fn info(&mut self, info: &RecordingInfo, shared: &mut Shared) -> Result<(), String> {
        if self.shift_ns.is_none() {
            let epoch_ns = if info.epoch_unix_ns > 0 { info.epoch_unix_ns } else { self.process.epoch_unix_ns };
            shared.begin_at(epoch_ns);
            let epoch_ns = if epoch_ns > 0 { epoch_ns } else { shared.epoch_unix_ns };
            self.shift_ns = Some(i128::from(epoch_ns) - i128::from(shared.epoch_unix_ns));
        }
        if shared.alloc_conf.get_or_insert_with(|| info.alloc_conf.clone()) != &info.alloc_conf {
            shared.alloc_conf = Some(String::new());
        }
        // Of a machine's GPUs each process uses one, so they are among all devices once something happens there.
        self.told = info.devices.clone();
        self.tell_devices(shared);
        Ok(())
    }

    /// What is known of the devices is told anew, where it has changed.
    fn tell_devices(&self, shared: &mut Shared) {
        for (&theirs, &ours) in &self.devices {
            let about = self.about(theirs, ours);
            shared.is_news |= shared.devices.insert(ours.0, about.clone()) != Some(about);
        }
    }

    /// What is known of a device.
    fn about(&self, theirs: DeviceId, ours: DeviceId) -> DeviceInfo {
        let told = self.told.iter().find(|told| told.device == theirs.0).cloned().unwrap_or_default();
        let name = match theirs {
            _ if !told.name.is_empty() => plain(&told.name),
            DeviceId::HOST => "host memory".to_owned(),
            DeviceId(theirs) => format!("device {theirs}"),
        };
        let (name, process) = (format!("{} · {name}", self.title), self.process.to_string());
        let history_complete = told.history_complete && self.is_whole;
        DeviceInfo { device: ours.0, name, rank: self.process.rank, process, history_complete, ..told }
    }

    /// What a device is called here.
    fn device(&mut self, theirs: DeviceId, shared: &mut Shared) -> Result<DeviceId, String> {
        if let Some(&known) = self.devices.get(&theirs) {
            return Ok(known);
        }
        if shared.devices.len() == MAX_ALL_DEVICES {
            return Err(format!("the hub has had {MAX_ALL_DEVICES} devices, and takes no more"));
        }
        if self.devices.len() == MAX_DEVICES {
            return Err(format!("it has more than {MAX_DEVICES} devices"));
        }
        let ours = DeviceId(shared.number(self.process.rank));
        shared.devices.insert(ours.0, self.about(theirs, ours));
        shared.is_news = true;
        self.devices.insert(theirs, ours);
        Ok(ours)
    }

    /// A time of its own clock on that of all.
    pub(super) fn time(&self, time_ns: u64, now_ns: u64) -> u64 {
        let time_ns = i128::from(time_ns) + self.shift_ns.unwrap_or(0);
        u64::try_from(time_ns.clamp(0, i128::from(now_ns))).unwrap_or(now_ns)
    }

    fn state(&mut self, state: Box<MemoryState>, now_ns: u64, shared: &mut Shared) -> Result<(), String> {
        let lost = self.next_event.map_or(0, |next| state.event().saturating_sub(next));
        self.is_whole &= state.event() == 0 || (self.next_event.is_some() && lost == 0);
        self.next_event = Some(state.event());
        self.lost = self.lost.saturating_add(lost);
        for (theirs, _) in state.devices() {
            self.device(theirs, shared)?;
        }
        self.tell_devices(shared);
        let time_ns = self.time(state.time_ns(), now_ns).max(self.until_ns);
        self.put(time_ns, now_ns, What::State { state, lost });
        Ok(())
    }

    fn event(&mut self, event: &Event, now_ns: u64, shared: &mut Shared) -> Result<(), String> {
        self.next_event = Some(self.next_event.unwrap_or(0) + 1);
        if let EventKind::Gap { lost } = event.kind {
            self.lost = self.lost.saturating_add(lost);
        }
        let device = self.device(event.device, shared)?;
        let kind = retold(event.kind, |site| self.numbers.site(site), |name| self.numbers.string(name));
        self.put(self.time(event.time_ns, now_ns), now_ns, What::Event(kind, device));
        Ok(())
    }

    /// It is not listened to any more.
    pub(super) fn fail(&mut self, reason: String) {
        (self.decoder, self.has_more) = (Decoder::new(), false);
        (self.failed, self.has_ended) = (Some(reason), true);
    }

    /// Puts something behind all that waits.
    pub(super) fn put(&mut self, time_ns: u64, arrived_ns: u64, what: What) {
        // Within a process the order is its own.
        self.until_ns = self.until_ns.max(time_ns);
        self.spoke_ns = arrived_ns;
        self.has_caught_up |= self.until_ns.saturating_add(EARLY_NS) >= arrived_ns;
        self.weight += what.weight();
        self.pending.push_back(Pending { time_ns: self.until_ns, arrived_ns, what });
    }

    /// What is next of it.
    pub(super) fn pop(&mut self) -> Option<Pending> {
        let pending = self.pending.pop_front()?;
        self.weight -= pending.what.weight();
        Some(pending)
    }

    /// Whether it is not known what comes next of it.
    pub(super) fn is_awaited(&self) -> bool {
        self.connection.is_some() && !self.has_ended && self.pending.is_empty()
    }
}

/// What happened, with other numbers for sites and strings.
fn retold(
    mut kind: EventKind,
    renumber: impl Fn(SiteId) -> SiteId,
    rename: impl Fn(StringId) -> StringId,
) -> EventKind {
    use EventKind::*;
    match &mut kind {
        SegmentAllocated { site, .. }
        | SegmentFreed { site, .. }
        | SegmentMapped { site, .. }
        | SegmentUnmapped { site, .. }
        | BlockAllocated { site, .. }
        | FreeRequested { site, .. }
        | FreeCompleted { site, .. }
        | OutOfMemory { site, .. } => *site = renumber(*site),
        Mark { site, name, .. } => (*site, *name) = (renumber(*site), rename(*name)),
        MemorySample { .. } | Gap { .. } => {}
    }
    kind
}
