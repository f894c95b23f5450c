//! The data of a report, collected before anything is drawn.

use std::ops::Range;

use vramscope_insight::history::History;
use vramscope_insight::spans::Marks;
use vramscope_trace::{DeviceId, FormatError, Recording};
use vramscope_viewer::span;

use super::summary::DeviceSummary;

/// Maximum number of devices in a report, equal to the maximum number of processes that push to one
/// hub; a report of more devices is refused.
///
/// Each device costs a pass over the recording, and a file may contain 65,536.
pub const MAX_DEVICES: usize = 256;

/// Why a report cannot be made: a damaged recording, no events of the device, too many devices, or
/// a PNG that would be too high.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// A chunk cannot be read.
    #[error(transparent)]
    Recording(#[from] FormatError),
    /// The recording has no events of any device, or none of the requested device.
    #[error("the recording has no events of {}", .0.map_or("any device".to_owned(), |id| id.to_string()))]
    NoDevice(Option<DeviceId>),
    /// A PNG of this many devices would exceed the greatest height of a picture.
    #[error("a PNG picture of {0} devices would be too high: choose one device with --device, or write an SVG")]
    TooHigh(usize),
    /// The recording has more than [`MAX_DEVICES`] devices.
    #[error("the recording has {0} devices, more than the {MAX_DEVICES} of a report: choose one with --device")]
    TooManyDevices(usize),
}

/// A report of a recording, ready to draw as SVG or PNG: figures, charts and largest sites of its
/// devices.
pub struct RecordingReport<'a> {
    pub(super) recording: &'a Recording,
    pub(super) title: String,
    /// The recording's range of time.
    pub(super) range: Range<u64>,
    pub(super) marks: Marks,
    pub(super) devices: Vec<DeviceSummary>,
}

impl<'a> RecordingReport<'a> {
    /// Collects the data of one device of a recording, or of all. `name` is the title if the
    /// recording does not name the program.
    ///
    /// # Errors
    /// If there are no events of the device, there are more than [`MAX_DEVICES`], or a chunk cannot
    /// be read.
    pub fn new(recording: &'a Recording, name: &str, device: Option<DeviceId>) -> Result<Self, ReportError> {
        let ids: Vec<DeviceId> = recording.devices().filter(|&id| device.is_none_or(|device| device == id)).collect();
        if ids.is_empty() {
            return Err(ReportError::NoDevice(device));
        }
        if ids.len() > MAX_DEVICES {
            return Err(ReportError::TooManyDevices(ids.len()));
        }
        let range = span::whole(recording.start_ns(), recording.end_ns());
        let mut marks = Marks::default();
        marks.update(recording);
        let history = History::of(recording)?;
        let summary = |id| DeviceSummary::new(recording, id, &history);
        let devices: Result<Vec<DeviceSummary>, FormatError> = ids.into_iter().map(summary).collect();
        let program = recording.info().source.as_str();
        let title = if program.is_empty() { name } else { program }.to_owned();
        Ok(Self { recording, title, range, marks, devices: devices? })
    }
}
