//! A recording on one page, for an issue or a mail: an SVG or a PNG picture, made without a browser.
//!
//! The drawing belongs here and not beside the other exports, because it is the viewer's: the same timeline, the same heatmap, the
//! same font and colors, drawn on another `Surface`. The page is light, 1000 units wide and as high as it needs to be; each device has a block of
//! key figures, its memory and fragmentation over time, its segments at the peak of the allocated bytes, and the sites that hold the
//! most then. The same recording gives the same bytes.

mod chart;
mod facts;
mod page;
mod png;
mod svg;

use std::fmt;
use std::ops::Range;

use vramscope_trace::{DeviceId, FormatError, Recording};

use crate::frame::{Color, Frame};
use crate::marks::Marks;
use crate::span;
use crate::surface::Canvas;
use crate::text::Typesetter;
use crate::theme::Theme;
use crate::timeline::Look;
use facts::Facts;
use page::Page;

/// Pixels to the unit: twice as many as a page has, for screens that have twice as many.
const SCALE: f32 = 2.0;
/// Below this nobody can read a picture.
const LEAST_SCALE: f32 = 0.75;
/// Moments at which the fragmentation is looked at: one for every second unit of the chart's width.
const MOMENTS: usize = 432;

/// Devices that a report is of at most, as many as processes may push to one hub. What a device is said to have done costs a walk over the
/// recording, and a file may name 65,536.
pub const MAX_DEVICES: usize = 256;

/// Why there is no report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReportError {
    /// A chunk cannot be read.
    Recording(FormatError),
    /// Nothing is recorded of any device, or not of the one asked for.
    NoDevice(Option<DeviceId>),
    /// So many devices are in the recording that a picture in pixels would be too high.
    TooHigh(usize),
    /// More devices are in the recording than a report is of.
    TooMany(usize),
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recording(error) => error.fmt(f),
            Self::NoDevice(None) => f.write_str("nothing is recorded of any device"),
            Self::NoDevice(Some(device)) => write!(f, "nothing is recorded of device {}", device.0),
            Self::TooHigh(devices) => {
                write!(f, "a PNG picture of {devices} devices would be too high; name one of them, or write an SVG")
            }
            Self::TooMany(devices) => {
                write!(f, "a report is of at most {MAX_DEVICES} devices, and these are {devices}; name one of them")
            }
        }
    }
}

impl std::error::Error for ReportError {}

impl From<FormatError> for ReportError {
    fn from(error: FormatError) -> Self {
        Self::Recording(error)
    }
}

/// A report before it is drawn.
pub struct Report<'a> {
    recording: &'a Recording,
    title: String,
    range: Range<u64>,
    marks: Marks,
    facts: Vec<Facts>,
}

impl<'a> Report<'a> {
    /// A report on one device of a recording, or on all of them. `name` is what it is called where the recording does not say.
    ///
    /// # Errors
    /// If nothing is recorded of the device, there are more than [`MAX_DEVICES`], or a chunk cannot be read.
    pub fn new(recording: &'a Recording, name: &str, device: Option<DeviceId>) -> Result<Self, ReportError> {
        let devices: Vec<DeviceId> =
            recording.devices().filter(|&id| device.is_none_or(|device| device == id)).collect();
        if devices.is_empty() {
            return Err(ReportError::NoDevice(device));
        }
        if devices.len() > MAX_DEVICES {
            return Err(ReportError::TooMany(devices.len()));
        }
        let range = span::whole(recording.start_ns(), recording.end_ns());
        let mut marks = Marks::default();
        marks.update(recording);
        let facts: Result<Vec<Facts>, FormatError> =
            devices.into_iter().map(|device| Facts::of(recording, device, &range, MOMENTS)).collect();
        let told = recording.info().source.as_str();
        let title = if told.is_empty() { name } else { told }.to_owned();
        Ok(Self { recording, title, range, marks, facts: facts? })
    }

    /// The report as an SVG document that needs nothing beside it.
    #[must_use]
    pub fn svg(&self) -> String {
        let theme = Theme::new(false);
        let page = Page::new(self, Look { theme: &theme, scale: SCALE });
        let mut svg = svg::Svg::new(page.size());
        page.draw(&mut svg);
        svg.finish(&self.title, SCALE)
    }

    /// The report as a PNG file, twice as large as a page.
    ///
    /// # Errors
    /// If the picture would be higher than a picture may be.
    pub fn png(&self) -> Result<Vec<u8>, ReportError> {
        self.frame().map(|frame| png::encode(&frame))
    }

    /// The report in pixels.
    ///
    /// # Errors
    /// If the picture would be higher than a picture may be.
    pub fn frame(&self) -> Result<Frame, ReportError> {
        let theme = Theme::new(false);
        let (_, height) = Page::new(self, Look { theme: &theme, scale: 1.0 }).size();
        // Sides are whole pixels at any scale.
        let scale = SCALE.min(Frame::MAX_SIDE as f32 / (height as f32 + 8.0));
        if scale < LEAST_SCALE {
            return Err(ReportError::TooHigh(self.facts.len()));
        }
        let page = Page::new(self, Look { theme: &theme, scale });
        let (width, height) = page.size();
        let (mut frame, mut type_) = (Frame::new(width, height, Color::default()), Typesetter::new());
        page.draw(&mut Canvas { frame: &mut frame, type_: &mut type_ });
        Ok(frame)
    }
}
