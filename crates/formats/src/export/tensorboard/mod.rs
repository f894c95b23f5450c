//! Writes a recording as a TensorBoard event file: scalars with the names of
//! `torch.cuda.memory_stats()`.
//!
//! Each device is a group of tags, such as `cuda_0/allocated_bytes.all.current`, as PyTorch's
//! `SummaryWriter` writes `cuda:0`. The step is the event number. TensorBoard keeps a random choice
//! of 1000 points of a scalar, which could drop a peak. Here each scalar has at most
//! [`downsample::MAX_POINTS`], which include the minimum and maximum of every part of the
//! recording.
//!
//! TensorBoard stores scalars with 24 bits of precision: a number of bytes is accurate to one part
//! in 16 million.

mod downsample;
mod file;

use std::collections::BTreeMap;
use std::io::Write;

use vramscope_trace::{DeviceId, DeviceState, EventKind, MemorySample, Metrics, Recording, Replay};

use self::downsample::{DownsampledScalar, Point};
pub use self::file::ScalarFile;
use super::error::{ExportError, Progress};
use super::steps::{Moment, Step, for_each_step};

/// Returns the file name that TensorBoard expects for a recording's event file; it contains the
/// time of the recording in seconds since 1970.
#[must_use]
pub fn tensorboard_file_name(recording: &Recording) -> String {
    // TensorBoard's writers put the time in seconds here, and its readers sort by it. The
    // recording's own time gives a repeated export the name of the first, which it replaces.
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
    let begin = Moment { event: recording.first_event(), time_ns: recording.start_ns() };
    let mut replay = Replay::new();
    for (id, state) in replay.seek(recording, begin.event)?.devices() {
        devices.entry(id).or_insert_with(|| Device::new(recording, id)).push(begin, state);
    }
    for_each_step(recording, progress, |step| {
        let Step::Event { moment, event, after, .. } = step else { return Ok(()) };
        let device = devices.entry(event.device).or_insert_with(|| Device::new(recording, event.device));
        device.push(moment, after);
        if let EventKind::MemorySample { used_by_context, used_by_others, free } = event.kind {
            device.push_sample(moment, MemorySample { used_by_context, used_by_others, free });
        }
        Ok(())
    })?;
    let mut file = ScalarFile::create(out, seconds(epoch_ns, begin.time_ns))?;
    let end = Moment { event: recording.end_event(), time_ns: recording.end_ns() };
    for (id, mut device) in devices {
        if let Some(state) = recording.end_state().device(id) {
            device.inactive_split.push(Point { moment: end, value: inactive_split_bytes(state) });
        }
        let group = if id == DeviceId::HOST { "host".to_owned() } else { format!("cuda_{}", id.0) };
        for (name, points) in device.points() {
            let tag = format!("{group}/{name}");
            for Point { moment, value } in points {
                file.write(seconds(epoch_ns, moment.time_ns), moment.event, &[(&tag, value as f64)])?;
            }
        }
    }
    Ok(())
}

/// Converts `time_ns`, nanoseconds since the recording's time 0, to seconds since 1970. `epoch_ns`
/// is time 0 in nanoseconds since 1970.
fn seconds(epoch_ns: u64, time_ns: u64) -> f64 {
    (u128::from(epoch_ns) + u128::from(time_ns)) as f64 / 1e9
}

/// A scalar: its name in TensorBoard, and the function that computes its value.
type NamedScalar<T> = (&'static str, fn(&T) -> u64);

/// Name and value of the scalars that follow from a device's state, with PyTorch's names. As in
/// PyTorch, the number of blocks is the number of active blocks.
const SCALARS: [NamedScalar<DeviceState>; 6] = [
    ("allocated_bytes.all.current", |state| state.counters().allocated),
    ("active_bytes.all.current", |state| state.counters().active),
    ("reserved_bytes.all.current", |state| state.counters().reserved),
    ("requested_bytes.all.current", |state| state.counters().requested),
    ("active.all.current", |state| state.blocks().len() as u64),
    ("num_ooms", DeviceState::ooms),
];

/// Names of the peak scalars: the highest values so far of the first four [`SCALARS`].
const PEAKS: [&str; 4] =
    ["allocated_bytes.all.peak", "active_bytes.all.peak", "reserved_bytes.all.peak", "requested_bytes.all.peak"];

/// Name and value of the scalars of a memory sample. PyTorch's name for the first is
/// `torch.cuda.mem_get_info()`.
const SAMPLES: [NamedScalar<MemorySample>; 3] = [
    ("mem_get_info.free", |sample| sample.free),
    ("used_by_context_bytes", |sample| sample.used_by_context),
    ("used_by_others_bytes", |sample| sample.used_by_others),
];

/// Name of the scalar that counts segments. As in PyTorch, expandable segments do not count.
const SEGMENTS: &str = "segment.all.current";

/// Name of the scalar for inactive split bytes. Its value is computed only for the first event of
/// each interval of downsampling and at the end, because it takes a pass over all blocks.
const INACTIVE_SPLIT: &str = "inactive_split_bytes.all.current";

/// The points of one device's TensorBoard scalars so far.
struct Device {
    scalars: [DownsampledScalar; SCALARS.len()],
    peaks: [DownsampledScalar; PEAKS.len()],
    samples: [DownsampledScalar; SAMPLES.len()],
    segments: DownsampledScalar,
    /// The number of segments that are not expandable, and the number of all segments and reserved
    /// bytes when they were counted. They are counted again only if one of these has changed.
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

    /// Adds the values of all scalars that follow from `state`, the device's state from `moment`
    /// on.
    fn push(&mut self, moment: Moment, state: &DeviceState) {
        for (scalar, (_, of)) in self.scalars.iter_mut().zip(SCALARS) {
            scalar.push(moment, of(state));
        }
        for ((peak, peak_value), (_, of)) in self.peaks.iter_mut().zip(&mut self.peak_values).zip(SCALARS) {
            *peak_value = of(state).max(*peak_value);
            peak.push(moment, *peak_value);
        }
        let all = (state.segments().len(), state.counters().reserved);
        if self.counted_segments.1 != all {
            self.counted_segments = (state.segments().filter(|segment| !segment.expandable).count() as u64, all);
        }
        self.segments.push(moment, self.counted_segments.0);
        // `metrics_over_time` cannot be used here: its moments are not the beginnings of these
        // intervals.
        if self.events.is_multiple_of(self.interval) {
            self.inactive_split.push(Point { moment, value: inactive_split_bytes(state) });
        }
        self.events += 1;
    }

    /// Adds the values of a memory sample taken at `moment` to the scalars.
    fn push_sample(&mut self, moment: Moment, sample: MemorySample) {
        for (scalar, (_, of)) in self.samples.iter_mut().zip(SAMPLES) {
            scalar.push(moment, of(&sample));
        }
    }

    /// Returns name and points of each scalar that has at least one point.
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

/// Returns PyTorch's `inactive_split_bytes`: bytes of free blocks that share a segment with live
/// blocks, without expandable segments.
fn inactive_split_bytes(state: &DeviceState) -> u64 {
    Metrics::at(state, |_, _| true).inactive_split_bytes
}
