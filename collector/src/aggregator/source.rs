//! Decodes one process's stream and converts it to the numbers and the clock of the merged
//! recording.

use std::collections::{BTreeMap, VecDeque};

use vramscope_trace::{
    Annotation, DecodedItem, Decoder, DeviceId, DeviceInfo, Event, EventKind, MemoryState, RecordingInfo, Relabel,
};

use super::renumber::{DefinitionTable, SourceNumbers};
use crate::process::{Process, plain};

/// The longest that a process's event waits, after its arrival, for earlier events of other
/// processes: 0.2 s, in nanoseconds. A recorder sends events every 20 ms; delays of a busy machine
/// and of the connection are well below this.
pub(super) const WAIT_NS: u64 = 200_000_000;
/// The most devices of one process. The stream of a process with more is refused.
const MAX_DEVICES: usize = 64;
/// The most marks and gaps that are kept for a device without other events. They become part of the
/// merged recording with the device's first other event; further ones are left out.
const MAX_HELD_MARKS: usize = 1024;
/// The most decoded entries of one process that may wait to be merged; at the limit, decoding stops
/// until some are merged. A full state counts as its number of segments and blocks.
pub(super) const MAX_PENDING_WEIGHT: usize = 1 << 16;
/// The most devices of all processes, including disconnected ones. The stream of a process that
/// adds another device is refused.
const MAX_ALL_DEVICES: usize = 2048;
/// Age that separates current events from history, in nanoseconds: 1 s. A process whose events are
/// older than this when they arrive is still sending events from before it connected.
const CURRENT_NS: u64 = 1_000_000_000;
/// The longest time that the first process may have started before the server, in nanoseconds: 31
/// days. An earlier start is ignored, because the process's clock must be wrong.
const MAX_EARLIER_NS: u64 = 31 * 24 * 3600 * 1_000_000_000;

/// A decoded event, annotation, relabel or full state that waits to be merged. Its times are in
/// nanoseconds since the merged recording's start.
#[derive(Debug)]
pub(super) struct PendingEntry {
    pub(super) time_ns: u64,
    /// When the entry arrived.
    pub(super) arrived_ns: u64,
    pub(super) entry: MergeEntry,
}

/// An event, full state, annotation or relabel of one process's recording. All but a full state
/// already have the merged recording's numbers; a full state still has the process's own.
#[derive(Debug)]
pub(super) enum MergeEntry {
    Event(EventKind, DeviceId),
    /// The process's full state. `lost` events before it are missing.
    State {
        state: Box<MemoryState>,
        lost: u64,
    },
    Annotation(Annotation),
    Relabel(Relabel),
}

impl MergeEntry {
    /// Returns how much the entry counts toward [`MAX_PENDING_WEIGHT`]: 1, or for a full state 1
    /// plus its number of segments and blocks.
    fn weight(&self) -> usize {
        match self {
            Self::State { state, .. } => {
                state.devices().map(|(_, device)| device.blocks().len() + device.segments().len()).sum::<usize>() + 1
            }
            Self::Event(..) | Self::Annotation(_) | Self::Relabel(_) => 1,
        }
    }
}

/// State that the streams of all processes share: definitions, devices, time 0, allocator settings.
#[derive(Debug, Default)]
pub(super) struct MergeContext {
    pub(super) table: DefinitionTable,
    /// The devices of all processes, by their numbers in the merged recording.
    pub(super) devices: BTreeMap<u16, DeviceInfo>,
    /// True if the output does not have the newest info yet.
    pub(super) info_changed: bool,
    /// Time 0 of the merged recording, in nanoseconds since 1970.
    pub(super) epoch_unix_ns: u64,
    /// True once the first process's info has arrived; then `epoch_unix_ns` is final.
    is_epoch_final: bool,
    /// True if the first process started well before the server.
    pub(super) started_earlier: bool,
    /// The allocator settings, or an empty string if the processes' settings differ.
    pub(super) alloc_conf: Option<String>,
}

impl MergeContext {
    pub(super) fn new(epoch_unix_ns: u64) -> Self {
        Self { info_changed: true, epoch_unix_ns, ..Self::default() }
    }

    /// Returns an unused device number: the process's rank if it is free and below
    /// [`MAX_ALL_DEVICES`], else one more than the highest number in use.
    fn new_device_number(&self, rank: Option<u32>) -> u16 {
        let rank = rank.and_then(|rank| u16::try_from(rank).ok());
        let rank_number = rank.filter(|&rank| usize::from(rank) < MAX_ALL_DEVICES && !self.devices.contains_key(&rank));
        rank_number.unwrap_or_else(|| self.devices.keys().next_back().map_or(0, |last| last + 1))
    }

    /// Converts a time in nanoseconds since 1970 to nanoseconds since the merged recording's start;
    /// earlier times become 0.
    pub(super) fn now_ns(&self, unix_ns: u64) -> u64 {
        unix_ns.saturating_sub(self.epoch_unix_ns)
    }

    /// Moves time 0 of the merged recording back to `epoch_unix_ns`, the first process's start in
    /// nanoseconds since 1970, if that is up to [`MAX_EARLIER_NS`] before the server's start. Only
    /// the first call has an effect.
    fn set_epoch(&mut self, epoch_unix_ns: u64) {
        let earlier_ns = self.epoch_unix_ns.saturating_sub(epoch_unix_ns);
        if !self.is_epoch_final && (1..MAX_EARLIER_NS).contains(&earlier_ns) {
            self.epoch_unix_ns = epoch_unix_ns;
            (self.info_changed, self.started_earlier) = (true, earlier_ns >= CURRENT_NS);
        }
        self.is_epoch_final = true;
    }
}

/// One process's stream: its decoder, its numbers in the merged recording, and its entries that
/// wait to be merged.
#[derive(Debug, Default)]
pub(super) struct ProcessSource {
    pub(super) process: Process,
    /// The prefix of its devices' names: its rank, and which run of that rank it is.
    title: String,
    decoder: Decoder,
    pub(super) numbers: SourceNumbers,
    /// The devices as the process describes them.
    device_infos: Vec<DeviceInfo>,
    /// The merged recording's numbers of the devices that had events, by the process's own numbers.
    pub(super) devices: BTreeMap<DeviceId, DeviceId>,
    /// The marks and gaps on devices without other events, by the process's own numbers.
    held_marks: BTreeMap<DeviceId, Vec<PendingEntry>>,
    /// Difference between the process's time 0 and the merged recording's.
    shift_ns: Option<i128>,
    /// The number of the first chunk that is missing.
    pub(super) next: u64,
    /// The number of the next event in the process's recording.
    next_event: Option<u64>,
    pub(super) pending: VecDeque<PendingEntry>,
    /// The number of pending entries, counting full states as [`MAX_PENDING_WEIGHT`] says.
    pub(super) weight: usize,
    /// The time of the newest entry.
    pub(super) until_ns: u64,
    /// When the process connected first.
    pub(super) joined_unix_ns: u64,
    /// When an entry last arrived.
    pub(super) last_arrival_ns: u64,
    /// True if pushed bytes are not decoded yet.
    pub(super) has_more: bool,
    /// True once the process has sent a current event.
    pub(super) has_caught_up: bool,
    /// The number of the newest connection, or `None` while disconnected.
    pub(super) connection: Option<u64>,
    /// When the last connection was lost.
    pub(super) disconnected_unix_ns: u64,
    /// True if no more entries will come: the recording has ended or was refused.
    pub(super) has_ended: bool,
    /// Why the stream was refused.
    pub(super) failure: Option<String>,
    /// The number of missing events.
    pub(super) lost: u64,
    /// True if events are missing after the first one that arrived.
    has_gap: bool,
}

impl ProcessSource {
    /// Creates the source of a new process, the `run`th of its rank.
    pub(super) fn new(process: Process, run: usize, joined_unix_ns: u64) -> Self {
        let title = match run {
            1 => process.short_name(),
            _ => format!("{}, run {run}", process.short_name()),
        };
        Self { process, title, joined_unix_ns, ..Self::default() }
    }

    /// Stores the bytes of whole chunks, for [`step`](Self::step) to decode.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// Decodes pushed chunks until [`MAX_PENDING_WEIGHT`] is reached. Returns true if all are
    /// decoded, false if some are left. Times later than `now_unix_ns` are set to it.
    ///
    /// # Errors
    /// If the bytes are not a valid recording or exceed a limit. The source cannot be used further.
    pub(super) fn step(&mut self, now_unix_ns: u64, context: &mut MergeContext) -> Result<bool, String> {
        self.has_more = true;
        while self.weight < MAX_PENDING_WEIGHT {
            // Computed in every pass, because the first process's header may move the epoch.
            let now_ns = context.now_ns(now_unix_ns);
            let Some(item) = self.decoder.next_item().map_err(|error| error.to_string())? else {
                self.has_more = false;
                return self.decoder.finish().map(|()| true).map_err(|error| error.to_string());
            };
            match item {
                DecodedItem::Info(info) => self.take_info(&info, context)?,
                DecodedItem::Define(definition) => self.numbers.define(&definition, &mut context.table),
                DecodedItem::FullState(state) => self.take_state(state, now_ns, context)?,
                DecodedItem::Event(event) => self.take_event(&event, now_ns, context)?,
                DecodedItem::Annotation(annotation) => {
                    let (name, time_ns) =
                        (self.numbers.string(annotation.name), self.merged_ns(annotation.time_ns, now_ns));
                    // Its event number is set when it is merged.
                    let entry = |device| MergeEntry::Annotation(Annotation { device, name, time_ns, ..annotation });
                    match self.devices.get(&annotation.device) {
                        None if self.holds_marks() => {
                            self.hold_mark(annotation.device, time_ns, now_ns, entry(DeviceId(0)));
                        }
                        _ => {
                            let device = self.device(annotation.device, context)?;
                            self.append(self.until_ns, now_ns, entry(device));
                        }
                    }
                }
                DecodedItem::Relabel(relabel) => {
                    // A device without events has no blocks.
                    if let Some(&device) = self.devices.get(&relabel.device) {
                        let (site, time_ns) =
                            (self.numbers.site(relabel.site), self.merged_ns(relabel.time_ns, now_ns));
                        self.append(time_ns, now_ns, MergeEntry::Relabel(Relabel { device, site, ..relabel }));
                    }
                }
            }
        }
        Ok(false)
    }

    /// Handles a header of the process's recording: the first one says when the process started,
    /// and each updates the devices and the allocator settings.
    fn take_info(&mut self, info: &RecordingInfo, context: &mut MergeContext) -> Result<(), String> {
        if self.shift_ns.is_none() {
            let epoch_ns = if info.epoch_unix_ns > 0 { info.epoch_unix_ns } else { self.process.epoch_unix_ns };
            context.set_epoch(epoch_ns);
            let epoch_ns = if epoch_ns > 0 { epoch_ns } else { context.epoch_unix_ns };
            self.shift_ns = Some(i128::from(epoch_ns) - i128::from(context.epoch_unix_ns));
        }
        if context.alloc_conf.get_or_insert_with(|| info.alloc_conf.clone()) != &info.alloc_conf {
            context.alloc_conf = Some(String::new());
        }
        // Devices without events are left out: each process lists all GPUs of the machine, and
        // normally uses only one of them.
        self.device_infos = info.devices.clone();
        self.update_devices(context);
        Ok(())
    }

    /// Updates the descriptions of this process's devices in `context`, and sets `info_changed`
    /// there if one has changed.
    fn update_devices(&self, context: &mut MergeContext) {
        for (&local, &merged) in &self.devices {
            let info = self.device_info(local, merged);
            context.info_changed |= context.devices.insert(merged.0, info.clone()) != Some(info);
        }
    }

    /// Returns the description, for the merged recording's header, of the device with number
    /// `local` in the process and `merged` in the merged recording.
    fn device_info(&self, local: DeviceId, merged: DeviceId) -> DeviceInfo {
        let info = self.device_infos.iter().find(|info| info.device == local.0).cloned().unwrap_or_default();
        let name = match local {
            _ if !info.name.is_empty() => plain(&info.name),
            DeviceId::HOST => "host memory".to_owned(),
            DeviceId(number) => format!("device {number}"),
        };
        let (name, process) = (format!("{} · {name}", self.title), self.process.to_string());
        let history_complete = info.history_complete && !self.has_gap;
        DeviceInfo { device: merged.0, name, rank: self.process.rank, process, history_complete, ..info }
    }

    /// Returns the merged recording's number of the process's device `local`, and assigns a number
    /// to a new device. Returns an error if the process or all processes have too many devices.
    fn device(&mut self, local: DeviceId, context: &mut MergeContext) -> Result<DeviceId, String> {
        if let Some(&merged) = self.devices.get(&local) {
            return Ok(merged);
        }
        if context.devices.len() == MAX_ALL_DEVICES {
            return Err(format!("the limit of {MAX_ALL_DEVICES} devices of all processes is reached"));
        }
        if self.devices.len() == MAX_DEVICES {
            return Err(format!("the process has more than {MAX_DEVICES} devices"));
        }
        let merged = DeviceId(context.new_device_number(self.process.rank));
        context.devices.insert(merged.0, self.device_info(local, merged));
        context.info_changed = true;
        self.devices.insert(local, merged);
        for PendingEntry { time_ns, arrived_ns, mut entry } in self.held_marks.remove(&local).unwrap_or_default() {
            if let MergeEntry::Event(_, device) | MergeEntry::Annotation(Annotation { device, .. }) = &mut entry {
                *device = merged;
            }
            self.append(time_ns, arrived_ns, entry);
        }
        Ok(merged)
    }

    /// Converts nanoseconds since the process's start to nanoseconds since the merged recording's
    /// start, limited to the range from 0 to `now_ns`.
    pub(super) fn merged_ns(&self, time_ns: u64, now_ns: u64) -> u64 {
        let time_ns = i128::from(time_ns) + self.shift_ns.unwrap_or(0);
        u64::try_from(time_ns.clamp(0, i128::from(now_ns))).unwrap_or(now_ns)
    }

    /// Adds a full state to the entries that wait to be merged, and counts the events that are
    /// missing before it.
    fn take_state(&mut self, state: Box<MemoryState>, now_ns: u64, context: &mut MergeContext) -> Result<(), String> {
        let lost = self.next_event.map_or(0, |next| state.event().saturating_sub(next));
        self.has_gap |= state.event() != 0 && (self.next_event.is_none() || lost > 0);
        self.next_event = Some(state.event());
        self.lost = self.lost.saturating_add(lost);
        for (local, device) in state.devices() {
            // A mark alone makes a device part of the state.
            if device.segments().len() > 0 || !self.holds_marks() {
                self.device(local, context)?;
            }
        }
        self.update_devices(context);
        let time_ns = self.merged_ns(state.time_ns(), now_ns).max(self.until_ns);
        self.append(time_ns, now_ns, MergeEntry::State { state, lost });
        Ok(())
    }

    /// Converts an event to the merged recording's numbers and time, and adds it to the entries
    /// that wait to be merged.
    fn take_event(&mut self, event: &Event, now_ns: u64, context: &mut MergeContext) -> Result<(), String> {
        self.next_event = Some(self.next_event.unwrap_or(0) + 1);
        if let EventKind::Gap { lost } = event.kind {
            self.lost = self.lost.saturating_add(lost);
        }
        let mut kind = event.kind;
        if let Some(site) = kind.site_mut() {
            *site = self.numbers.site(*site);
        }
        if let EventKind::Mark { name, .. } = &mut kind {
            *name = self.numbers.string(*name);
        }
        let time_ns = self.merged_ns(event.time_ns, now_ns);
        // After a pause, every device has a gap.
        let is_held = matches!(kind, EventKind::Mark { .. } | EventKind::Gap { .. });
        if is_held && self.holds_marks() && !self.devices.contains_key(&event.device) {
            self.hold_mark(event.device, time_ns, now_ns, MergeEntry::Event(kind, DeviceId(0)));
            return Ok(());
        }
        let device = self.device(event.device, context)?;
        self.append(time_ns, now_ns, MergeEntry::Event(kind, device));
        Ok(())
    }

    /// Returns true if the process has several devices. It marks all of them but normally uses only
    /// one, so marks and gaps on a device are kept until the device has another event.
    fn holds_marks(&self) -> bool {
        self.device_infos.len() > 1
    }

    /// Keeps a mark or a gap on a device without other events until the device has another event.
    fn hold_mark(&mut self, local: DeviceId, time_ns: u64, arrived_ns: u64, entry: MergeEntry) {
        let held = self.held_marks.entry(local).or_default();
        if held.len() < MAX_HELD_MARKS {
            held.push(PendingEntry { time_ns, arrived_ns, entry });
        }
    }

    /// Refuses the rest of the stream, with `reason` as the error for the process. Entries that
    /// wait to be merged stay.
    pub(super) fn fail(&mut self, reason: String) {
        (self.decoder, self.has_more) = (Decoder::new(), false);
        (self.failure, self.has_ended) = (Some(reason), true);
    }

    /// Adds an entry that happened at `time_ns` and arrived at `arrived_ns`, both in nanoseconds
    /// since the merged recording's start, to those that wait to be merged. An entry earlier than
    /// the process's newest one gets that one's time.
    pub(super) fn append(&mut self, time_ns: u64, arrived_ns: u64, entry: MergeEntry) {
        // A process's entries keep their order, so times do not decrease.
        self.until_ns = self.until_ns.max(time_ns);
        self.last_arrival_ns = arrived_ns;
        self.has_caught_up |= self.until_ns.saturating_add(CURRENT_NS) >= arrived_ns;
        self.weight += entry.weight();
        self.pending.push_back(PendingEntry { time_ns: self.until_ns, arrived_ns, entry });
    }

    /// Removes and returns the oldest entry that waits to be merged.
    pub(super) fn pop(&mut self) -> Option<PendingEntry> {
        let pending = self.pending.pop_front()?;
        self.weight -= pending.entry.weight();
        Some(pending)
    }

    /// Returns true if no entry waits to be merged and the process is connected and may still send
    /// some. Other processes' entries then wait for this process.
    pub(super) fn is_awaited(&self) -> bool {
        self.connection.is_some() && !self.has_ended && self.pending.is_empty()
    }
}
