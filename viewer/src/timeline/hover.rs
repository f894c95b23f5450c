//! Texts about the moments under the pointer.

use std::sync::Arc;

use vramscope_draw::{Color, Texture};
use vramscope_trace::{ByteSize, Count, Incident, Recording};

use super::flags::incident_text;
use super::scene::{TimelineScene, moment_text};

/// Maximum number of groups in the tooltip of the stacked timeline; the others are added up.
const MAX_GROUPS: usize = 10;

/// A group's bytes at the highest moment of a pixel column.
#[derive(Clone, Debug, PartialEq)]
pub struct HoverGroup {
    /// Name of the group.
    pub name: Arc<str>,
    /// Live bytes.
    pub bytes: u64,
    /// Fill color and texture; `None` for the sum of further groups.
    pub look: Option<(Color, Texture)>,
}

/// Texts about a pixel column of the timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hover {
    /// Distance of the column from the picture's left edge in pixels.
    pub x: i32,
    /// Time, and event numbers.
    pub title: String,
    /// Names and values of the counters.
    pub counters: Vec<(&'static str, String)>,
    /// Live bytes by group, if the timeline is stacked.
    pub groups: Vec<HoverGroup>,
    /// Names of the spans at the time, the outermost first.
    pub spans: Vec<String>,
    /// Texts about the box above the chart that is under the pointer.
    pub span_box: Vec<String>,
    /// Out-of-memory errors and gaps at the flag under the pointer, or in the column.
    pub incidents: Vec<String>,
}

/// Formats the lowest and the highest value of a counter in a pixel column: `3.2 GiB`, or `1 to 3.2
/// GiB`.
fn value_text(low: u64, high: u64) -> String {
    let (low, high) = (ByteSize(low).to_string(), ByteSize(high).to_string());
    if low == high { high } else { format!("{low} to {high}") }
}

impl Hover {
    /// Describes the column at pixel (`x`, `y`). `spans` are the names of the spans at the time,
    /// innermost first.
    pub fn new(scene: &TimelineScene, recording: &Recording, (x, y): (i32, i32), spans: &[&str]) -> Self {
        let axis = &scene.axis;
        let plot = scene.geometry.plot;
        let column = axis.column_at(f64::from(x));
        let edge = |index: usize| axis.edges().get(index).copied().unwrap_or(0);
        let (from, to) = (edge(column), edge(column + 1).max(edge(column)));
        let time = moment_text(recording, axis.moment_at(f64::from(x)).time_ns);
        let events = if to > from + 1 {
            format!("events {} to {}", Count(from + 1), Count(to))
        } else {
            format!("event {}", Count(to))
        };
        let mut counters = scene.columns.get(column).map_or_else(Vec::new, |one| {
            vec![
                ("allocated", value_text(one.min.allocated, one.max.allocated)),
                ("active", value_text(one.min.active, one.max.active)),
                ("reserved", value_text(one.min.reserved, one.max.reserved)),
            ]
        });
        if let Some(run) = scene.run_columns.get(column) {
            counters.push(("what if: allocated", value_text(run.min.allocated, run.max.allocated)));
            counters.push(("what if: reserved", value_text(run.min.reserved, run.max.reserved)));
        }
        if let Some(lane) = scene.lanes.at(y) {
            let (allocated, reserved) = lane.columns.get(column).copied().unwrap_or_default();
            let size = |bytes: u64| format!("at most {}", ByteSize(bytes));
            return Self {
                x: plot.x0 + column as i32,
                title: format!("{} · {time}", recording.info().device_label(lane.device)),
                counters: vec![("allocated", size(allocated)), ("reserved", size(reserved))],
                ..Self::default()
            };
        }
        let flagged = scene.incidents_at(x, y);
        let is_in_column =
            |incident: &&Incident| axis.column(super::flags::moment_of(incident)) == Some(plot.x0 + column as i32);
        let incidents: Vec<&Incident> = if flagged.is_empty() {
            scene.flags.iter().flat_map(|flag| &flag.incidents).filter(is_in_column).collect()
        } else {
            flagged.iter().collect()
        };
        let describe = |incident: &&Incident| {
            format!("{} at {}", incident_text(incident), moment_text(recording, incident.time_ns))
        };
        Self {
            x: plot.x0 + column as i32,
            title: format!("{time} · {events}"),
            counters,
            groups: groups(scene, column),
            spans: spans.iter().rev().map(|&name| name.to_owned()).collect(),
            span_box: scene.spans.lines_at((x, y), scene.scale, spans),
            incidents: incidents.iter().map(describe).collect(),
        }
    }
}

/// Returns the largest groups in a pixel column of the stacked timeline, at most [`MAX_GROUPS`],
/// and the sum of all others.
fn groups(scene: &TimelineScene, column: usize) -> Vec<HoverGroup> {
    let Some(stack) = &scene.stack else { return Vec::new() };
    let all = stack.groups_in(column);
    let (largest, rest) = all.split_at(all.len().min(MAX_GROUPS));
    let mut groups: Vec<HoverGroup> = largest
        .iter()
        .map(|(layer, bytes)| HoverGroup {
            name: Arc::clone(&layer.name),
            bytes: *bytes,
            look: Some((layer.color, layer.texture)),
        })
        .collect();
    if !rest.is_empty() {
        let bytes = rest.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        let name = format!("{} more", Count(rest.len() as u64).of("group", "groups"));
        groups.push(HoverGroup { name: name.into(), bytes, look: None });
    }
    groups
}
