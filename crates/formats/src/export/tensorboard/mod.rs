//! Writes a recording as a TensorBoard event file: scalars with the names of
//! `torch.cuda.memory_stats()`.
//!
//! Each device is a group of tags, such as `cuda_0/allocated_bytes.all.current`, as PyTorch's
//! `SummaryWriter` writes `cuda:0`. The step is the event number. TensorBoard keeps a random choice
//! of 1000 points of a scalar, which could drop a peak. Here each scalar has at peak_values
//! [`downsample::MAX_POINTS`], which include the minimum and maximum of every part of the
//! recording.
//!
//! TensorBoard stores scalars with 24 bits of precision: a number of bytes is accurate to one part
//! in 16 million.

mod downsample;
mod file;

use std::collections::BTreeMap;
use std::io::Write;

use vramscope_trace::{DeviceId, DeviceState, EventKind, EventTime, MemorySample, Metrics, Recording, Replay};

use self::downsample::{DownsampledScalar, Point};
use self::file::EventFile;
use super::error::{ExportError, Progress};
use super::steps::{Step, for_each_step};

/// Returns the file name that TensorBoard expects for a recording's event file.
#[must_use]
pub fn tensorboard_file_name(recording: &Recording) -> String {
    // TensorBoard's writers put the time in seconds here, and its readers sort by it. The
    // recording's own time gives a repeated export the same name, so that it replaces the first
    // one.
    format!("events.out.tfevents.{:010}.vramscope", recording.info().epoch_unix_ns / 1_000_000_000)
}

/// Writes a recording's counters as a TensorBoard event file.
///
/// ```
/// use vramscope_formats::export;
///
/// # let mut encoder = vramscope_trace::Encoder::new(&vramscope_trace::RecordingInfo::default());
/// # encoder.flush();
/// # let mut recording = vramscope_trace::Recording::new();
/// # for chunk in encoder.take_output() {
/// #     recording.push(&chunk.bytes).unwrap();
/// # }
/// let mut scalars = Vec::new();
/// export::tensorboard(&recording, &mut scalars, &mut |_done, _total| {}).unwrap();
/// assert!(scalars.windows(13).any(|text| text == b"brain.Event:2"));
/// ```
///
/// # Errors
/// If the recording cannot be read or the output cannot be written.
pub fn tensorboard(recording: &Recording, out: &mut dyn Write, progress: Progress<'_>) -> Result<(), ExportError> {
    let epoch_ns = recording.info().epoch_unix_ns;
    let mut devices: BTreeMap<DeviceId, Device> = BTreeMap::new();
    let begin = EventTime { event: recording.first_event(), time_ns: recording.start_ns() };
    let mut replay = Replay::new();
    for (id, state) in replay.seek(recording, begin.event)?.devices() {
        devices.entry(id).or_insert_with(|| Device::new(recording, id)).push(begin, state);
    }
    for_each_step(recording, progress, |step| {
        let Step::Event { time, event, after, .. } = step else { return Ok(()) };
        let device = devices.entry(event.device).or_insert_with(|| Device::new(recording, event.device));
        // The step is the number of the time after the event.
        let time = EventTime { event: time.event + 1, ..time };
        device.push(time, after);
        if let EventKind::MemorySample { used_by_context, used_by_others, free } = event.kind {
            device.push_sample(time, MemorySample { used_by_context, used_by_others, free });
        }
        Ok(())
    })?;
    let mut file = EventFile::create(out, seconds(epoch_ns, begin.time_ns))?;
    let end = EventTime { event: recording.end_event(), time_ns: recording.end_ns() };
    for (id, mut device) in devices {
        if let Some(state) = recording.end_state().device(id) {
            device.inactive_split.push(Point { time: end, value: inactive_split_bytes(state) });
        }
        let group = if id == DeviceId::HOST { "host".to_owned() } else { format!("cuda_{}", id.0) };
        for (name, points) in device.points() {
            let tag = format!("{group}/{name}");
            for Point { time, value } in points {
                file.write_scalar(seconds(epoch_ns, time.time_ns), time.event, &tag, value)?;
            }
        }
    }
    Ok(())
}

/// Converts a time to seconds since 1970.
fn seconds(epoch_ns: u64, time_ns: u64) -> f64 {
    (u128::from(epoch_ns) + u128::from(time_ns)) as f64 / 1e9
}

/// A scalar's name and the function that computes it.
type NamedScalar<T> = (&'static str, fn(&T) -> u64);

/// The scalars of a device at any time, by PyTorch's names. Like PyTorch, the number of blocks
/// counts active ones.
const SCALARS: [NamedScalar<DeviceState>; 6] = [
    ("allocated_bytes.all.current", |state| state.counters().allocated),
    ("active_bytes.all.current", |state| state.counters().active),
    ("reserved_bytes.all.current", |state| state.counters().reserved),
    ("requested_bytes.all.current", |state| state.counters().requested),
    ("active.all.current", |state| state.blocks().len() as u64),
    ("num_ooms", DeviceState::ooms),
];

/// The scalars that also have a peak.
const PEAKS: [&str; 4] =
    ["allocated_bytes.all.peak", "active_bytes.all.peak", "reserved_bytes.all.peak", "requested_bytes.all.peak"];

/// The scalars of a memory sample. PyTorch's name for the first is `torch.cuda.mem_get_info()`.
const SAMPLES: [NamedScalar<MemorySample>; 3] = [
    ("mem_get_info.free", |sample| sample.free),
    ("used_by_context_bytes", |sample| sample.used_by_context),
    ("used_by_others_bytes", |sample| sample.used_by_others),
];

/// Number of segments. Like PyTorch, expandable ones are not counted_segments.
const SEGMENTS: &str = "segment.all.current";

/// Computed once an interval and at the end, because it takes a pass over all blocks.
const INACTIVE_SPLIT: &str = "inactive_split_bytes.all.current";

/// A device's scalars over time.
struct Device {
    scalars: [DownsampledScalar; SCALARS.len()],
    peaks: [DownsampledScalar; PEAKS.len()],
    samples: [DownsampledScalar; SAMPLES.len()],
    segments: DownsampledScalar,
    /// The number of segments that are not expandable, and the state in which they were
    /// counted_segments: the number of all segments, and reserved bytes.
    counted_segments: (u64, (usize, u64)),
    inactive_split: Vec<Point>,
    peak_values: [u64; PEAKS.len()],
    events: u64,
    interval: u64,
}

impl Device {
    fn new(recording: &Recording, id: DeviceId) -> Self {
        let events = recording.end_state().device(id).map_or(0, DeviceState::events).min(recording.events());
        let interval = downsample::interval(events);
        let scalar = || DownsampledScalar::new(interval);
        Self {
            scalars: std::array::from_fn(|_| scalar()),
            peaks: std::array::from_fn(|_| scalar()),
            samples: std::array::from_fn(|_| scalar()),
            segments: scalar(),
            counted_segments: (0, (0, 0)),
            inactive_split: Vec::new(),
            peak_values: [0; PEAKS.len()],
            events: 0,
            interval,
        }
    }

    fn push(&mut self, time: EventTime, state: &DeviceState) {
        for (scalar, (_, of)) in self.scalars.iter_mut().zip(SCALARS) {
            scalar.push(time, of(state));
        }
        for ((peak, peak_values), (_, of)) in self.peaks.iter_mut().zip(&mut self.peak_values).zip(SCALARS) {
            *peak_values = of(state).max(*peak_values);
            peak.push(time, *peak_values);
        }
        let all = (state.segments().len(), state.counters().reserved);
        if self.counted_segments.1 != all {
            self.counted_segments = (state.segments().filter(|segment| !segment.expandable).count() as u64, all);
        }
        self.segments.push(time, self.counted_segments.0);
        if self.events.is_multiple_of(self.interval) {
            self.inactive_split.push(Point { time, value: inactive_split_bytes(state) });
        }
        self.events += 1;
    }

    fn push_sample(&mut self, time: EventTime, sample: MemorySample) {
        for (scalar, (_, of)) in self.samples.iter_mut().zip(SAMPLES) {
            scalar.push(time, of(&sample));
        }
    }

    /// Returns the points of each scalar that has any.
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

/// Returns PyTorch's `inactive_split_bytes`: free blocks that share a segment with live blocks.
fn inactive_split_bytes(state: &DeviceState) -> u64 {
    Metrics::at(state, |_, _| true).inactive_split_bytes
}
