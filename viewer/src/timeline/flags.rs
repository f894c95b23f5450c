//! Flags at out-of-memory errors and gaps.

use vramscope_draw::Rect;
use vramscope_trace::{ByteSize, Count, Incident, IncidentKind};

use super::content::TimelineContent;
use super::geometry::{Geometry, TEXT};
use super::measure::Measure;
use super::scale::TimedMoment;
use super::x_axis::XAxis;

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
    flag_text(std::slice::from_ref(incident))
}

/// Returns the text of the flag for these incidents: the number of errors if there are several, the
/// largest request that failed, and the number of lost events.
fn flag_text(incidents: &[Incident]) -> String {
    let (mut requests, mut gaps) = (Vec::new(), Vec::new());
    for incident in incidents {
        match incident.kind {
            IncidentKind::OutOfMemory { requested } => requests.push(requested),
            IncidentKind::Gap { lost } => gaps.push(lost),
        }
    }
    let errors = requests.iter().max().map(|&largest| match requests.len() {
        1 => format!("OOM {}", ByteSize(largest)),
        count => format!("{} × OOM up to {}", Count(count as u64), ByteSize(largest)),
    });
    let lost = gaps.into_iter().reduce(u64::saturating_add);
    let lost = lost.map(|lost| format!("{} lost", Count(lost).of("event", "events")));
    errors.into_iter().chain(lost).collect::<Vec<_>>().join(" · ")
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
