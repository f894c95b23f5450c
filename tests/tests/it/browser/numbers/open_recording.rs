//! A recording on the page, and which moments the pixel columns of its pictures show.

use std::ops::Range;

use fastrand::Rng;
use vramscope_tests::Page;
use vramscope_trace::{Counters, DeviceId};

use super::pointer::{Size, picture_size};
use super::subject::Subject;

/// Units left and right of the plot of every picture over time.
const PLOT_MARGINS: (i32, i32) = (64, 22);

/// A recording on the page, and everything about its device at all moments.
pub(super) struct OpenRecording<'a> {
    pub(super) page: Page<'a>,
    pub(super) subject: &'a Subject,
    pub(super) device: DeviceId,
    /// The counters at each moment; the index is the event number.
    pub(super) counters: Vec<Counters>,
    /// The time of each moment, from the recording's start.
    pub(super) times_ns: Vec<u64>,
    /// Number of points of each picture.
    pub(super) points: usize,
}

impl OpenRecording<'_> {
    /// Returns the text before a failure.
    pub(super) fn context(&self, picture: &str, point: (i32, i32)) -> String {
        format!("{}, device {}, {picture} at {point:?}", self.subject.name, self.device.0)
    }

    /// Returns the event numbers at the edges of the timeline's pixel columns.
    pub(super) fn timeline_edges(&self, axis: &str) -> Vec<u64> {
        let width = picture_size(self.page, "timeline").plot().len() as u64;
        let end = self.counters.len() as u64 - 1;
        if axis == "events" {
            return (0..=width).map(|column| end * column / width).collect();
        }
        let state = self.page.state();
        let [from, to] = ["from_ns", "to_ns"].map(|name| state.view[name].as_u64().expect("a time"));
        let position = |column: u64| from + (u128::from(to - from) * u128::from(column) / u128::from(width)) as u64;
        (0..=width).map(|column| self.moment_at(position(column))).collect()
    }

    /// Returns the last moment at or before a time.
    fn moment_at(&self, time_ns: u64) -> u64 {
        let (first, last) = (self.times_ns[0], self.times_ns.len() as u64 - 1);
        match time_ns {
            _ if time_ns <= first => 0,
            _ => (self.times_ns.partition_point(|&time| time <= time_ns) as u64 - 1).min(last),
        }
    }

    /// Returns the event numbers at the edges of the pixel columns of a pane's chart, which is
    /// narrower than the timeline: each is that of the nearest column of the timeline.
    pub(super) fn chart_edges(&self, view: &str) -> Vec<u64> {
        let edges = self.timeline_edges("events");
        let (columns, last) = (picture_size(self.page, view).plot().len(), edges.len() - 1);
        (0..=columns).map(|column| edges[(column * last + columns / 2) / columns]).collect()
    }
}

impl Size {
    /// Returns the pixel columns of the plot in a picture over time.
    pub(super) fn plot(self) -> Range<i32> {
        self.px(PLOT_MARGINS.0)..self.width - self.px(PLOT_MARGINS.1)
    }

    /// Returns the column of the plot at a pixel.
    pub(super) fn column(self, x: i32) -> usize {
        (x - self.plot().start) as usize
    }

    /// Returns random points of the plot of a picture over time, between pixel rows.
    pub(super) fn plot_points(self, random: &mut Rng, rows: Range<i32>, count: usize) -> Vec<(i32, i32)> {
        (0..count).map(|_| (random.i32(self.plot()), random.i32(rows.clone()))).collect()
    }
}

/// Parses an address.
pub(super) fn hexadecimal(text: &str) -> u64 {
    let digits = text.strip_prefix("0x").unwrap_or_default();
    u64::from_str_radix(digits, 16).unwrap_or_else(|_| panic!("{text:?} is not an address"))
}

/// Returns a size to the byte: `1,024 B`.
pub(super) fn exact(bytes: u64) -> String {
    let digits = bytes.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + " B"
}
