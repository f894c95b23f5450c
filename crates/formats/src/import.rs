//! The whole way from a file's bytes to events in a sink.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use vramscope_trace::{Annotation, DeviceId, DeviceInfo, Event, Info, MemoryState, Sink};

use crate::error::ReadError;
use crate::limits::Limits;
use crate::rmm;
use crate::sniff::{Source, sniff};
use crate::torch::annotations;
use crate::torch::rebuild::{History, Sites};
use crate::torch::snapshot::{AnnotationRow, Snapshot};
use crate::torch::{json, pickle};

/// Events between two reports of progress.
const PROGRESS_EVENTS: u64 = 1 << 16;

/// The name of the device whose memory is the host's.
const HOST_NAME: &str = "host (pinned)";
/// How many devices that did nothing are named; more than any machine has, few enough for a made up file to stay small.
const MAX_IDLE_DEVICES: usize = 64;

/// What there is to say of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// What was given to the sink's maker.
    pub info: Info,
    /// How many events the sink was given: one for each entry of the history, and where it names no segments one each time that more
    /// of one becomes known.
    pub events: u64,
    /// How many of them contradicted what was known of memory, and how many other parts of the file did or meant nothing.
    pub misfits: u64,
    /// What a person should know, in plain sentences: a history began late, entries did not fit, parts were not read.
    pub notes: Vec<String>,
}

/// Reads a PyTorch snapshot, a pickle or JSON, or an RMM log, and gives what happened to a sink.
///
/// The bytes must be [unpacked](crate::unpack()). `name` becomes the recording's source. The sink is made by `begin` once the snapshot
/// is read and before anything is given to it. `progress` is told how much is done, of how much.
///
/// The sink gets definitions before the events that use them, first of all a full state where something was there before the first
/// event, and the events of all devices in order of time; events of the same time by device, and each device's in the order of its
/// history. The host's pinned memory is told as device [`DeviceId::HOST`]. Time 0 is the earliest event; its time since 1970 is [`Info::epoch_unix_ns`]. An annotation stands before the first event
/// that is not earlier. Where no entry has a time, event n happens at n microseconds.
///
/// # Errors
/// Where the bytes are no snapshot, are damaged, or would take more than `limits` allow.
pub fn import<S: Sink>(
    bytes: &[u8],
    name: &str,
    limits: &Limits,
    progress: &mut dyn FnMut(u64, u64),
    begin: impl FnOnce(&Info) -> S,
) -> Result<(S, Imported), ReadError> {
    // Reading is one half of the way, telling the other.
    let half = bytes.len() as u64;
    let mut reading = |offset: usize| progress(offset as u64, 2 * half);
    let mut snapshot = match sniff(bytes) {
        Some(Source::TorchPickle) => pickle::read(bytes, limits, &mut reading)?,
        Some(Source::TorchJson) => json::read(bytes, limits, &mut reading)?,
        Some(Source::RmmLog) => return rmm::import(bytes, name, limits, progress, begin),
        Some(Source::Trace) => return Err(ReadError::at(0, "this is a recording already, which needs no import,")),
        None => {
            return Err(ReadError::at(
                0,
                "this is neither a pickle of protocol 2 to 5 nor JSON nor an RMM log, as the bytes begin",
            ));
        }
    };
    let mut sites = Sites::new(std::mem::take(&mut snapshot.interner));
    let definitions = std::mem::take(&mut snapshot.definitions);
    let histories: Vec<History<'_>> =
        snapshot.devices().into_iter().map(|device| History::new(&snapshot, device)).collect();
    let teller = Teller::new(&snapshot, &histories);
    let info = info(&snapshot, &histories, name, &teller);
    let mut sink = begin(&info);
    for definition in &definitions {
        sink.define(definition);
    }
    drop(definitions);
    let mut telling = |events: u64, of: u64| progress(half + half * events / of.max(1), 2 * half);
    let (events, misfits, notes) = teller.tell(histories, &mut sites, &mut sink, &mut telling);
    progress(2 * half, 2 * half);
    Ok((sink, Imported { info, events, misfits, notes }))
}

fn info(snapshot: &Snapshot, histories: &[History<'_>], name: &str, teller: &Teller<'_>) -> Info {
    let device_info = |history: &History<'_>| DeviceInfo {
        device: history.device,
        name: if DeviceId(history.device) == DeviceId::HOST { HOST_NAME.to_owned() } else { String::new() },
        history_complete: history.is_complete,
        uncertain_events: history.uncertain_entries(),
        ..DeviceInfo::default()
    };
    let mut devices: BTreeMap<u16, DeviceInfo> =
        histories.iter().map(|history| (history.device, device_info(history))).collect();
    // Of a device that was there and never used, that is all there is to say.
    for device in snapshot.listed_devices().take(MAX_IDLE_DEVICES) {
        let history_complete = !snapshot.settings.overflowed;
        devices.entry(device).or_insert(DeviceInfo { device, history_complete, ..DeviceInfo::default() });
    }
    Info {
        source: name.to_owned(),
        writer: concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")).to_owned(),
        epoch_unix_ns: teller.epoch_unix_ns(),
        alloc_conf: snapshot.settings.alloc_conf(),
        source_settings: snapshot.settings.json.clone(),
        devices: devices.into_values().collect(),
    }
}

/// Tells the histories of all devices as one.
struct Teller<'a> {
    snapshot: &'a Snapshot,
    /// The time of the first event.
    epoch_us: i64,
    annotations: Vec<AnnotationRow>,
    annotations_left_out: usize,
}

impl<'a> Teller<'a> {
    fn new(snapshot: &'a Snapshot, histories: &[History<'_>]) -> Self {
        let first_event_us = histories.iter().filter_map(|history| history.earliest_us).min();
        let first_annotation_us = snapshot.annotations.iter().map(|row| row.time_us).min();
        let epoch_us = first_event_us.or(first_annotation_us).unwrap_or(0);
        let (annotations, annotations_left_out) = if snapshot.has_times || first_event_us.is_none() {
            annotations::since(&snapshot.annotations, epoch_us)
        }
        // Without times of the events there is no place for them.
        else {
            (Vec::new(), snapshot.annotations.len())
        };
        Self { snapshot, epoch_us, annotations, annotations_left_out }
    }

    fn epoch_unix_ns(&self) -> u64 {
        let has_times = self.snapshot.has_times || !self.annotations.is_empty();
        if has_times { u64::try_from(self.epoch_us).unwrap_or(0).saturating_mul(1000) } else { 0 }
    }

    fn time_ns(&self, time_us: i64) -> u64 {
        u64::try_from(time_us.saturating_sub(self.epoch_us)).unwrap_or(0).saturating_mul(1000)
    }

    /// Gives everything to the sink; says how many events there were, how many did not fit, and what else there is to say.
    fn tell<S: Sink>(
        &self,
        mut histories: Vec<History<'_>>,
        sites: &mut Sites,
        sink: &mut S,
        progress: &mut dyn FnMut(u64, u64),
    ) -> (u64, u64, Vec<String>) {
        let total = histories.iter().map(|history| history.len).sum();
        if histories.iter().any(|history| !history.starts_empty()) {
            let mut state = MemoryState::default();
            for history in &histories {
                history.fill_start(state.device_mut(DeviceId(history.device)), sites);
            }
            define_fresh(sites, sink);
            sink.full_state(&state);
        }
        let mut annotations = self.annotations.iter().peekable();
        let mut events = 0;
        let mut next_up: BinaryHeap<_> = (histories.iter().enumerate())
            .filter_map(|(index, history)| history.next_time_us().map(|time_us| Reverse((time_us, index))))
            .collect();
        while let Some(Reverse((time_us, index))) = next_up.pop() {
            let history = &mut histories[index];
            while let Some(row) = annotations.next_if(|row| row.time_us <= time_us) {
                sink.annotation(&self.annotation(row, events));
            }
            let Some(kind) = history.next_event(sites) else { continue };
            define_fresh(sites, sink);
            let device = DeviceId(history.device);
            sink.event(&Event { device, time_ns: self.time_ns(time_us), kind });
            events += 1;
            if events % PROGRESS_EVENTS == 0 {
                progress(events, total);
            }
            if let Some(time_us) = history.next_time_us() {
                next_up.push(Reverse((time_us, index)));
            }
        }
        for row in annotations {
            sink.annotation(&self.annotation(row, events));
        }
        let misfits = histories.iter().map(History::misfits).sum::<u64>() + self.snapshot.odd_values;
        (events, misfits, self.notes(&histories))
    }

    fn annotation(&self, row: &AnnotationRow, at_event: u64) -> Annotation {
        Annotation {
            device: DeviceId(row.device),
            time_ns: self.time_ns(row.time_us),
            at_event,
            stage: row.stage,
            name: row.name,
        }
    }

    fn notes(&self, histories: &[History<'_>]) -> Vec<String> {
        let snapshot = self.snapshot;
        let mut notes = Vec::new();
        for history in histories {
            history.add_notes(&mut notes);
        }
        if !snapshot.has_segments {
            notes.push("The snapshot lists no segments, so where its history ends could not be checked.".to_owned());
        }
        if !snapshot.settings.present {
            notes.push("The snapshot does not say the allocator's settings; the default ones were assumed.".to_owned());
        }
        if !snapshot.has_times && !snapshot.entries.is_empty() {
            notes.push("The entries have no times; each was given a microsecond.".to_owned());
        }
        if self.annotations_left_out > 0 {
            let count = self.annotations_left_out;
            notes.push(format!("{count} annotations from before the history were left out."));
        }
        if snapshot.has_times && snapshot.untimed > 0 {
            let count = snapshot.untimed;
            notes.push(format!("{count} entries have no time; each was given that of the one before it."));
        }
        if let Some(first) = snapshot.first_odd {
            let count = snapshot.odd_values;
            notes
                .push(format!("{count} values of the snapshot mean nothing and were left out; of the first, {first}."));
        }
        notes
    }
}

fn define_fresh(sites: &mut Sites, sink: &mut impl Sink) {
    for definition in sites.interner.take_fresh() {
        sink.define(&definition);
    }
}
