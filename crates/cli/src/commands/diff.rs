//! `vramscope diff`: compares two recordings, or two moments of one, site by site.

use std::ffi::OsString;

use clap::Args;
use vramscope_insight::conditions::Condition;
use vramscope_trace::{DeviceId, PerRecording};

use crate::diff::checks::{self, Check};
use crate::diff::compared::{Compared, compare_operands};
use crate::diff::operand::Operand;
use crate::diff::{json, markdown, tables};
use crate::error::Result;
use crate::escape::escape_controls;
use crate::input::Input;
use crate::number::parse_whole;
use crate::operation::Operation;
use crate::terminal;

/// Text after the options in `vramscope diff --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope diff before.vram after.vram
  vramscope diff before.pickle after.pickle --json
  vramscope diff run.vram@step:2 run.vram@step:9
  vramscope diff run.vram run.vram --device 0:1
  vramscope diff main.vram pull-request.vram --fail-if 'peak_allocated > +2%' --markdown

Moments: FILE@peak (of the allocated bytes, the default), FILE@end, FILE@EVENT, FILE@step:N and
FILE@span:NAME (the peaks within a step, and within the first span with a name).

Conditions of --fail-if: METRIC, then >, >=, < or <=, then a change (+2%, -5%, +100MiB) or a value
of B (20GiB, 0, 30%). METRIC is peak_allocated, peak_reserved, allocated, active, reserved or
requested (at the moment), end_allocated, end_reserved, ooms, events, allocations, allocated_total,
blocks, segments, fragmentation, peak_fragmentation, end_fragmentation, highest_fragmentation or
mean_fragmentation.";

/// Arguments of `vramscope diff`: the two recordings, their moments and devices, the conditions to
/// check, and the form of the output.
#[derive(Args, Debug)]
pub(crate) struct DiffArguments {
    /// First recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json) or RMM log
    /// (.csv); each also with .gz or .zst. @MOMENT after the name selects a moment
    #[arg(value_name = "A")]
    a: OsString,
    /// Second recording; may be the first one, for two of its moments or devices
    #[arg(value_name = "B")]
    b: OsString,
    /// Device to compare, or the devices of A and B, such as 0:1
    #[arg(long, value_name = "N|A:B", value_parser = parse_devices)]
    device: Option<Devices>,
    /// Exit with status 1 if this condition holds, such as 'peak_allocated > +2%'; repeatable
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Condition>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Print a summary in Markdown, for a comment on a pull request
    #[arg(long)]
    markdown: bool,
}

/// The device of each recording to compare.
#[derive(Clone, Copy, Debug)]
struct Devices(PerRecording<DeviceId>);

/// Parses the devices to compare: `0`, or `0:1`.
fn parse_devices(text: &str) -> std::result::Result<Devices, String> {
    let number = |text| parse_whole(text).map(DeviceId).map_err(|error| format!("{error}, or two as in 0:1"));
    let (a, b) = text.split_once(':').unwrap_or((text, text));
    Ok(Devices(PerRecording { a: number(a)?, b: number(b)? }))
}

/// Compares two recordings and prints the difference. Returns false if a condition of `--fail-if`
/// holds.
pub(crate) fn run(arguments: &DiffArguments) -> Result<bool> {
    let operands = PerRecording { a: Operand::parse(&arguments.a)?, b: Operand::parse(&arguments.b)? };
    let devices = arguments.device.map(|Devices(devices)| devices);
    let comparison = compare_operands(&operands, devices, Input::open, &Operation::on_terminal())?;
    let checks = checks::check(&arguments.fail_if, &comparison)?;
    let compared = Compared { operands, comparison, checks };
    if arguments.json {
        terminal::print_json(&json::DiffReport::new(&compared))?;
    } else if arguments.markdown {
        terminal::print(&markdown::text(&compared))?;
    } else {
        terminal::print(&text(&compared))?;
    }
    Ok(!compared.checks.iter().any(Check::fails))
}

/// Returns the difference as text for the terminal.
fn text(compared: &Compared) -> String {
    let Compared { operands: PerRecording { a, b }, comparison, checks } = compared;
    let mut out = format!("a: {}\nb: {}\n", escape_controls(&a.text), escape_controls(&b.text));
    if let Some(note) = compared.matching_warning() {
        out += &format!("{note}\n");
    }
    for device in &comparison.devices {
        out += &tables::device_text(device, compared.moments(), terminal::columns());
    }
    if !checks.is_empty() {
        out += &format!("\n{}", checks::table(checks, terminal::columns()));
    }
    out
}
