//! A recording as a TensorBoard event file: scalars under the names that `torch.cuda.memory_stats()` gives them.
//!
//! A device is a group of tags, `cuda_0/allocated_bytes.all.current`: what PyTorch's `SummaryWriter` makes of the name `cuda:0`. The
//! step is the number of the event. TensorBoard keeps 1000 points of a scalar and drops others at random, and so a peak may be lost; here each
//! scalar has at most [`reduce::POINTS`], among them the least and the greatest value of every stretch of the recording.
//!
//! TensorBoard's scalars have 24 bits of precision, so that a number of bytes is right to one part in 16 million.

mod file;
mod reduce;

use std::collections::BTreeMap;
use std::io::Write;

use vramscope_trace::{DeviceId, DeviceState, EventKind, MemorySample, Recording, Replay};

use self::file::EventFile;
use self::reduce::{Point, Reduced};
use super::follow::{Moment, Step, follow};
use super::{ExportError, Progress};

/// The name that TensorBoard wants a recording's event file to have in its folder.
#[must_use]
pub fn tensorboard_file_name(recording: &Recording) -> String {
    // The writers of TensorBoard put the time in seconds here, and read files in this order. The recording's own time gives a second
    // export of it the same name, so that it takes the place of the first.
    format!("events.out.tfevents.{:010}.vramscope", recording.info().epoch_unix_ns / 1_000_000_000)
}

/// Writes a recording's counters as a TensorBoard event file.
///
/// # Errors
/// If the recording cannot be read or the output cannot be written.
pub fn tensorboard(recording: &Recording, out: &mut dyn Write, progress: Progress<'_>) -> Result<(), ExportError> {
    let epoch_ns = recording.info().epoch_unix_ns;
    let mut devices: BTreeMap<DeviceId, Device> = BTreeMap::new();
    let begin = Moment { event: recording.first_event(), time_ns: recording.start_ns() };
    let mut replay = Replay::new();
    for (id, state) in replay.seek(recording, begin.event)?.devices() {
        devices.entry(id).or_insert_with(|| Device::new(recording, id)).take(begin, state);
    }
    follow(recording, progress, |step| {
        let Step::Event { moment, event, after, .. } = step else { return Ok(()) };
        let device = devices.entry(event.device).or_insert_with(|| Device::new(recording, event.device));
        // The step is the moment behind the event.
        let moment = Moment { event: moment.event + 1, ..moment };
        device.take(moment, after);
        if let EventKind::MemorySample { used_by_context, used_by_others, free } = event.kind {
            device.take_sample(moment, MemorySample { used_by_context, used_by_others, free });
        }
        Ok(())
    })?;
    let mut file = EventFile::begin(out, seconds(epoch_ns, begin.time_ns))?;
    let end = Moment { event: recording.end_event(), time_ns: recording.end_ns() };
    for (id, mut device) in devices {
        if let Some(state) = recording.end_state().device(id) {
            device.inactive_split.push(Point { moment: end, value: inactive_split_bytes(state) });
        }
        let group = if id == DeviceId::HOST { "host".to_owned() } else { format!("cuda_{}", id.0) };
        for (name, points) in device.points() {
            let tag = format!("{group}/{name}");
            for Point { moment, value } in points {
                file.scalar(seconds(epoch_ns, moment.time_ns), moment.event, &tag, value)?;
            }
        }
    }
    Ok(())
}

/// Seconds since 1970.
fn seconds(epoch_ns: u64, time_ns: u64) -> f64 {
    (u128::from(epoch_ns) + u128::from(time_ns)) as f64 / 1e9
}

/// A scalar and its name.
type Named<T> = (&'static str, fn(&T) -> u64);

/// The scalars that are a device's own at any moment, by PyTorch's names. Those of blocks count them, as PyTorch does, active ones.
const SCALARS: [Named<DeviceState>; 6] = [
    ("allocated_bytes.all.current", |state| state.counters().allocated),
    ("active_bytes.all.current", |state| state.counters().active),
    ("reserved_bytes.all.current", |state| state.counters().reserved),
    ("requested_bytes.all.current", |state| state.counters().requested),
    ("active.all.current", |state| state.blocks().len() as u64),
    ("num_ooms", DeviceState::ooms),
];

/// Those of which there is a peak too.
const PEAKS: [&str; 4] =
    ["allocated_bytes.all.peak", "active_bytes.all.peak", "reserved_bytes.all.peak", "requested_bytes.all.peak"];

/// What the driver says. PyTorch has a name for the first, `torch.cuda.mem_get_info()`.
const SAMPLES: [Named<MemorySample>; 3] = [
    ("mem_get_info.free", |sample| sample.free),
    ("used_by_context_bytes", |sample| sample.used_by_context),
    ("used_by_others_bytes", |sample| sample.used_by_others),
];

/// How many segments the driver was asked for. As PyTorch has it, expandable ones do not count.
const SEGMENTS: &str = "segment.all.current";

/// What takes a walk over all blocks, and so is looked at once a stretch and at the end.
const INACTIVE_SPLIT: &str = "inactive_split_bytes.all.current";

/// A device's scalars over time.
struct Device {
    scalars: [Reduced; SCALARS.len()],
    peaks: [Reduced; PEAKS.len()],
    samples: [Reduced; SAMPLES.len()],
    segments: Reduced,
    /// What was counted last: segments that are not expandable, where there were so many in all of so many bytes.
    counted: (u64, (usize, u64)),
    inactive_split: Vec<Point>,
    most: [u64; PEAKS.len()],
    events: u64,
    stretch: u64,
}

impl Device {
    fn new(recording: &Recording, id: DeviceId) -> Self {
        let events = recording.end_state().device(id).map_or(0, DeviceState::events).min(recording.events());
        let stretch = reduce::stretch(events);
        let reduced = || Reduced::new(stretch);
        Self {
            scalars: std::array::from_fn(|_| reduced()),
            peaks: std::array::from_fn(|_| reduced()),
            samples: std::array::from_fn(|_| reduced()),
            segments: reduced(),
            counted: (0, (0, 0)),
            inactive_split: Vec::new(),
            most: [0; PEAKS.len()],
            events: 0,
            stretch,
        }
    }

    fn take(&mut self, moment: Moment, state: &DeviceState) {
        for (scalar, (_, of)) in self.scalars.iter_mut().zip(SCALARS) {
            scalar.take(moment, of(state));
        }
        for ((peak, most), (_, of)) in self.peaks.iter_mut().zip(&mut self.most).zip(SCALARS) {
            *most = of(state).max(*most);
            peak.take(moment, *most);
        }
        let all = (state.segments().len(), state.counters().reserved);
        if self.counted.1 != all {
            self.counted = (state.segments().filter(|segment| !segment.expandable).count() as u64, all);
        }
        self.segments.take(moment, self.counted.0);
        if self.events.is_multiple_of(self.stretch) {
            self.inactive_split.push(Point { moment, value: inactive_split_bytes(state) });
        }
        self.events += 1;
    }

    fn take_sample(&mut self, moment: Moment, sample: MemorySample) {
        for (scalar, (_, of)) in self.samples.iter_mut().zip(SAMPLES) {
            scalar.take(moment, of(&sample));
        }
    }

    /// The points of each scalar that has any.
    fn points(self) -> impl Iterator<Item = (&'static str, Vec<Point>)> {
        let scalars = SCALARS.into_iter().map(|(name, _)| name).zip(self.scalars);
        let peaks = PEAKS.into_iter().zip(self.peaks);
        let samples = SAMPLES.into_iter().map(|(name, _)| name).zip(self.samples);
        let segments = [(SEGMENTS, self.segments)];
        let reduced =
            scalars.chain(peaks).chain(samples).chain(segments).map(|(name, reduced)| (name, reduced.finish()));
        reduced.chain([(INACTIVE_SPLIT, self.inactive_split)]).filter(|(_, points)| !points.is_empty())
    }
}

/// Bytes of free blocks that have a live block in their segment: the caching allocator cannot give them back. As PyTorch has it,
/// expandable segments do not count: their free pages can be unmapped.
fn inactive_split_bytes(state: &DeviceState) -> u64 {
    state.segments().filter(|segment| !segment.expandable).fold(0u64, |sum, segment| {
        let (free, live) = state.extents(segment).fold((0u64, false), |(free, live), extent| match extent.block {
            Some(_) => (free, true),
            None => (free + extent.size, live),
        });
        if live { sum.saturating_add(free) } else { sum }
    })
}
