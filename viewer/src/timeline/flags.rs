//! Flags at out-of-memory errors and gaps.

use vramscope_trace::{ByteSize, Count, Incident, IncidentKind};

use super::content::TimelineContent;
use super::geometry::{Geometry, TEXT};
use super::measure::Measure;
use super::scale::TimedMoment;
use super::x_axis::XAxis;
use crate::draw::bitmap::Rect;

/// A flag above the chart for one incident, or for several that are close together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Flag {
    pub(super) rect: Rect,
    pub(super) text: String,
    /// The incidents that the flag marks.
    pub(super) incidents: Vec<Incident>,
}

/// Returns the moment after an incident, and its time.
pub(super) fn moment_of(incident: &Incident) -> TimedMoment {
    TimedMoment { event: incident.at_event.saturating_add(1), time_ns: incident.time_ns }
}

/// Returns the text of a single incident: `OOM 48 MiB` or `1,234 events lost`.
pub(super) fn incident_text(incident: &Incident) -> String {
    match incident.kind {
        IncidentKind::OutOfMemory { requested } => format!("OOM {}", ByteSize(requested)),
        IncidentKind::Gap { lost } => format!("{} lost", Count(lost).of("event", "events")),
    }
}

/// Returns the text of the flag for these incidents: the text of a single one, or their number.
fn flag_text(incidents: &[Incident]) -> String {
    if let [incident] = incidents {
        return incident_text(incident);
    }
    let is_gap = |incident: &&Incident| matches!(incident.kind, IncidentKind::Gap { .. });
    let (gaps, errors): (Vec<&Incident>, Vec<&Incident>) = incidents.iter().partition(is_gap);
    let lost = gaps.iter().fold(0u64, |sum, gap| match gap.kind {
        IncidentKind::Gap { lost } => sum.saturating_add(lost),
        IncidentKind::OutOfMemory { .. } => sum,
    });
    let errors_text = match errors[..] {
        [] => String::new(),
        [error] => incident_text(error),
        _ => {
            let size = |incident: &&Incident| match incident.kind {
                IncidentKind::OutOfMemory { requested } => requested,
                IncidentKind::Gap { .. } => 0,
            };
            let largest = errors.iter().map(size).max().unwrap_or(0);
            format!("{} × OOM up to {}", Count(errors.len() as u64), ByteSize(largest))
        }
    };
    match (errors.is_empty(), gaps.is_empty()) {
        (_, true) => errors_text,
        (true, false) => format!("{} lost", Count(lost).of("event", "events")),
        (false, false) => format!("{errors_text} · {} lost", Count(lost).of("event", "events")),
    }
}

/// Returns the lines and the flags of out-of-memory errors and gaps in view. A gap's line is
/// dashed.
///
/// A flag without room beside the previous flag is merged with it, so that every incident has a
/// flag.
pub(super) fn flags(
    measure: &Measure,
    geometry: &Geometry,
    axis: &XAxis,
    content: &TimelineContent,
) -> (Vec<Rect>, Vec<Flag>) {
    let plot = geometry.plot;
    let mut lines = Vec::new();
    // The column and the incidents of each flag.
    let mut placed: Vec<(i32, Flag)> = Vec::new();
    let mut last_line = None;
    for incident in content.marks.incidents() {
        let is_oom = matches!(incident.kind, IncidentKind::OutOfMemory { .. });
        // A gap concerns every device.
        let is_relevant = incident.device == content.device || !is_oom;
        let Some(x) = axis.column(moment_of(incident)).filter(|_| is_relevant) else { continue };
        if last_line.replace((x, is_oom)) != Some((x, is_oom)) {
            let dash = measure.px(4.0).max(1);
            let (step, length) = if is_oom { (usize::MAX, i32::MAX) } else { (2 * dash as usize, dash) };
            for y in (geometry.incident_row.y0..plot.y1).step_by(step) {
                lines.push(Rect::new(x, y, x + measure.stroke(), y.saturating_add(length).min(plot.y1)));
            }
        }
        let flag = place(measure, geometry, x, vec![*incident]);
        let end = placed.last().map_or(i32::MIN, |(_, last)| last.rect.x1 + measure.px(2.0));
        let width = flag.rect.width();
        // A flag moves right of the one before it, but at most by its own width.
        let x0 = flag.rect.x0.max(end);
        if x0 - flag.rect.x0 <= width && x0 + width <= geometry.width {
            let rect = Rect { x0, x1: x0 + width, ..flag.rect };
            placed.push((x, Flag { rect, ..flag }));
            continue;
        }
        // Merged flags are as far left as the first of them.
        let Some((x, before)) = placed.pop() else {
            placed.push((x, flag));
            continue;
        };
        let mut incidents = before.incidents;
        incidents.push(*incident);
        let end = placed.last().map_or(i32::MIN, |(_, last)| last.rect.x1 + measure.px(2.0));
        let mut merged = place(measure, geometry, x, incidents);
        let x0 = merged.rect.x0.max(end).min((geometry.width - merged.rect.width()).max(0));
        merged.rect = Rect { x0, x1: x0 + merged.rect.width(), ..merged.rect };
        placed.push((x, merged));
    }
    (lines, placed.into_iter().map(|(_, flag)| flag).collect())
}

/// Creates the flag of incidents whose line is at pixel column `x`. The flag is right of the line,
/// or left of it near the chart's right edge.
fn place(measure: &Measure, geometry: &Geometry, x: i32, incidents: Vec<Incident>) -> Flag {
    let text = flag_text(&incidents);
    let width = measure.text_width(&text, TEXT - 1.0, 8.0);
    let x0 = if x + width > geometry.plot.x1 { x - width } else { x };
    Flag { rect: Rect { x0, x1: x0 + width, ..geometry.incident_row }, text, incidents }
}
