//! Prints steps and reports of techniques, as text and as JSON.

use std::collections::BTreeSet;

use serde::Serialize;
use vramscope_demo::techniques::{Figure, TechniqueReport, TechniqueStep};
use vramscope_trace::{ByteSize, Count};

use super::step_lines::StepLines;
use super::tools::ToolReport;
use crate::error::Result;
use crate::table;
use crate::terminal;

/// The output of `demo --technique` and `demo --compare` with `--json`.
#[derive(Serialize)]
struct Reports<'a> {
    reports: Vec<ReportWithTools<'a>>,
}

/// A report with the tools' measurements.
#[derive(Serialize)]
struct ReportWithTools<'a> {
    #[serde(flatten)]
    report: &'a TechniqueReport,
    #[serde(flatten)]
    tools: &'a ToolReport,
}

/// Prints reports as one line of JSON.
pub(super) fn print_reports_json(reports: &[(TechniqueReport, ToolReport)]) -> Result {
    let reports = reports.iter().map(|(report, tools)| ReportWithTools { report, tools });
    terminal::print_json(&Reports { reports: reports.collect() })
}

/// Prints a line about a step that has ended, as `lines` says.
pub(super) fn print_step(step: &TechniqueStep, lines: StepLines) -> Result {
    let &TechniqueStep { number, steps, loss, allocated_bytes, reserved_bytes, peak_allocated_bytes } = step;
    let [allocated, reserved, peak] = [allocated_bytes, reserved_bytes, peak_allocated_bytes].map(ByteSize);
    lines.print(&format!(
        "step {number:>3}/{steps}  loss {loss:.4}  allocated {allocated}  peak {peak}  reserved {reserved}"
    ))
}

/// Returns the name and the text of each figure in a report.
fn rows(report: &TechniqueReport) -> Vec<(&'static str, String)> {
    let bytes = |bytes: u64| ByteSize(bytes).to_string();
    let loss = |loss: Option<&f32>| loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.5}"));
    let mut rows = vec![
        ("device", report.device.to_owned()),
        ("steps", Count(report.losses.len() as u64).to_string()),
        ("peak allocated", bytes(report.peak_allocated_bytes)),
        ("peak requested", bytes(report.peak_requested_bytes)),
        ("peak reserved", bytes(report.peak_reserved_bytes)),
        ("peak in split segments", bytes(report.peak_inactive_split_bytes)),
        ("allocated at the end", bytes(report.end_allocated_bytes)),
        ("reserved at the end", bytes(report.end_reserved_bytes)),
        ("device allocations", Count(report.device_allocations).to_string()),
        ("optimizer state", bytes(report.optimizer_bytes)),
        ("time of a step", format!("{:.2} ms", report.step_ms)),
        ("first loss", loss(report.losses.first())),
        ("last loss", loss(report.losses.last())),
    ];
    rows.extend(report.figures.iter().map(|(name, figure)| (*name, figure_text(figure))));
    rows
}

/// Returns the text of a figure.
fn figure_text(figure: &Figure) -> String {
    match figure {
        Figure::Bytes(bytes) => ByteSize(*bytes).to_string(),
        Figure::Count(count) => Count(*count).to_string(),
        Figure::Number(number) => format!("{number:.5}"),
        Figure::Text(text) => text.clone(),
        Figure::List(numbers) => numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" "),
    }
}

/// Returns a figure's name as words without its unit: `peak allocated` for `peak_allocated_bytes`.
fn name_as_words(name: &str) -> String {
    name.strip_suffix("_bytes").unwrap_or(name).replace('_', " ")
}

/// Prints the figures of one report, or of several side by side, as a table.
pub(super) fn print_reports(reports: &[TechniqueReport]) -> Result {
    let header = [""].into_iter().chain(reports.iter().map(|report| report.technique.as_str()));
    let mut table = table::new(header, 1);
    let columns: Vec<_> = reports.iter().map(rows).collect();
    let mut printed = BTreeSet::new();
    for (name, _) in columns.iter().flatten() {
        if printed.insert(*name) {
            let value = |rows: &Vec<(&str, String)>| {
                rows.iter().find(|row| row.0 == *name).map_or_else(String::new, |row| row.1.clone())
            };
            table.add_row([name_as_words(name)].into_iter().chain(columns.iter().map(value)));
        }
    }
    terminal::print(&format!("\n{}", table::render(table, None)))
}
