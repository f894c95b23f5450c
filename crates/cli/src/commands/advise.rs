//! `vramscope advise`: the allocator settings that need least memory, and the smallest GPU.

use std::path::PathBuf;

use clap::Args;
use vramscope_insight::advice::{Advice, MemoryBounds, SmallestCapacity, required_pytorch, smallest_card};
use vramscope_insight::what_if::DeviceWorkload;
use vramscope_pool::{CONF_VARIABLES, Settings};
use vramscope_trace::{ByteSize, Count, Percent};

use crate::bars;
use crate::error::Result;
use crate::input::Input;
use crate::operation::Operation;
use crate::reports::advise::Advised;
use crate::simulation::LimitArguments;
use crate::table;
use crate::terminal;

/// Text after the options in `vramscope advise --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope advise run.vram
  vramscope advise limited.pickle --limit-bytes 40GiB --json";
/// Number of settings in the table.
const TABLE_ROWS: usize = 10;

/// Arguments of `vramscope advise`: the recording and its memory limits.
#[derive(Args, Debug)]
pub(crate) struct AdviseArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json), profiler trace or
    /// memory timeline (.json), or RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    limits: LimitArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Tries allocator settings on a recording's requests, and prints the best settings and the least
/// memory for each device.
pub(crate) fn run(arguments: &AdviseArguments) -> Result {
    let operation = Operation::until_signal()?;
    let recording = Input::open(&arguments.file)?.into_recording_without_marks()?;
    let advised = Advised::new(&arguments.file, &recording, &arguments.limits, &operation)?;
    if arguments.json {
        return terminal::print_json(&advised.report());
    }
    terminal::print(&advised.0.iter().map(|(device, advice)| text(device, advice)).collect::<Vec<_>>().join("\n"))
}

/// Returns a device's advice as text for the terminal.
fn text(device: &DeviceWorkload, advice: &Advice) -> String {
    let workload = &device.workload;
    let capacity = device.capacity_bytes.map_or("unlimited".to_owned(), |bytes| ByteSize(bytes).to_string());
    let tried = Count(advice.tried.len() as u64).of("setting", "settings");
    let calls = Count(workload.calls()).of("call", "calls");
    let estimate = if device.is_capacity_estimated { " at most, by the requests that failed" } else { "" };
    let mut text = format!("{}: tried {tried} on {calls}, capacity {capacity}{estimate}\n\n", workload.device());
    text += &best_text(advice, device.is_capacity_estimated);
    text += &chart(&advice.bounds());
    text += &tried_table(advice);
    text += &smallest_text(advice);
    let baseline = advice.baseline().predicted.peak_reserved_bytes;
    if baseline != advice.recorded.peak_reserved_bytes {
        text += &format!(
            "\nSimulated, the recorded settings reserve {}, not the recorded {}: savings are relative to that.\n",
            ByteSize(baseline),
            ByteSize(advice.recorded.peak_reserved_bytes)
        );
    }
    if let Some(event) = workload.unverified_from {
        text += &format!(
            "\nFrom event {} on, the pool diverges from the recorded allocator (see vramscope verify).\n",
            Count(event)
        );
    }
    text
}

/// Returns the best settings as a line that users can paste, and the bytes that they save.
fn best_text(advice: &Advice, is_capacity_estimated: bool) -> String {
    let (best, before) = (advice.best(), advice.baseline());
    if best.predicted.ooms > 0 && before.predicted.ooms == best.predicted.ooms {
        let failed = Count(best.predicted.ooms).of("request fails", "requests fail");
        return format!("No setting is enough for this capacity: {failed} under the best.\n\n");
    }
    if !advice.is_worthwhile() {
        let conf = conf_or_default(&before.settings);
        return format!("The recorded settings are the best: {conf}. No other saves more than 1%.\n\n");
    }
    let variable = CONF_VARIABLES[0];
    let mut text = format!("{variable}={}\n", best.settings.to_conf());
    if best.settings.to_conf().is_empty() {
        text = format!("Unset {variable}: PyTorch's defaults are best.\n");
    }
    let saved = advice.saved_bytes();
    let share = Percent(saved.unsigned_abs() as f64 / before.predicted.peak_reserved_bytes.max(1) as f64);
    let amount = ByteSize(saved.unsigned_abs());
    text += &match saved {
        0 => "  takes as much at the reserved peak".to_owned(),
        1.. => format!("  saves {amount} ({share}) of the reserved peak"),
        _ => format!("  takes {amount} ({share}) more at the reserved peak"),
    };
    let avoided = before.predicted.ooms.saturating_sub(best.predicted.ooms);
    if avoided > 0 {
        let condition =
            if is_capacity_estimated { ", if the pool can get that much memory; if not, pass --capacity" } else { "" };
        let before = Count(before.predicted.ooms);
        text += &format!("; avoids {} of {before} failed requests{condition}", Count(avoided));
    }
    let (major, minor) = required_pytorch(&best.settings);
    text += &format!("; for PyTorch {major}.{minor} or later\n");
    if let Some(simpler) = advice.simpler() {
        text += &format!(
            "  within 1%, and simpler: {} ({})\n",
            conf_or_default(&simpler.settings),
            ByteSize(simpler.predicted.peak_reserved_bytes)
        );
    }
    text + "\n"
}

/// Returns settings as text; for PyTorch's defaults a description instead of an empty text.
fn conf_or_default(settings: &Settings) -> String {
    match settings.to_conf() {
        conf if conf.is_empty() => "PyTorch's defaults".to_owned(),
        conf => conf,
    }
}

/// Returns the chart of the program's bytes and of the bytes that allocators reserve for it.
fn chart(bounds: &MemoryBounds) -> String {
    let rows = [
        ("live requests at their peak", Some(bounds.floor_bytes)),
        ("packed, knowing the future", bounds.packed_bytes),
        ("reserved, best settings", Some(bounds.best_bytes)),
        ("reserved, as recorded", Some(bounds.recorded_bytes)),
    ];
    let row = |(name, bytes): (&'static str, Option<u64>)| Some((name, bytes?, String::new()));
    bars::chart(&rows.into_iter().filter_map(row).collect::<Vec<_>>()) + "\n"
}

/// Returns the table of the best settings, with the recorded ones.
fn tried_table(advice: &Advice) -> String {
    let mut table = table::new(["  settings", "peak reserved", "out of memory", "retries", "device allocations"], 1);
    let rows = advice.tried.iter().enumerate().filter(|(rank, trial)| *rank < TABLE_ROWS || trial.is_recorded);
    for (_, trial) in rows {
        let mark = if trial.is_recorded { " (recorded)" } else { "" };
        let predicted = &trial.predicted;
        table.add_row([
            format!("  {}{mark}", conf_or_default(&trial.settings)),
            ByteSize(predicted.peak_reserved_bytes).to_string(),
            Count(predicted.ooms).to_string(),
            Count(predicted.retries).to_string(),
            Count(predicted.device_allocations).to_string(),
        ]);
    }
    table::render(table, None) + "\n"
}

/// Minimum bytes of a program for which a GPU is named: less fits every GPU that trains.
const MIN_CARD_BYTES: u64 = 4 << 30;

/// Returns the least memory under the recorded and the best settings, with the GPU for each.
fn smallest_text(advice: &Advice) -> String {
    let line = |name: &str, smallest: &SmallestCapacity| {
        let bytes = smallest.capacity_bytes;
        let card = match smallest_card(bytes) {
            _ if bytes < MIN_CARD_BYTES => String::new(),
            Some(card) => {
                let (usable, spare) = (card.usable_bytes(), card.usable_bytes().saturating_sub(bytes));
                format!("; smallest GPU: {} ({} usable, {} to spare)", card.name, ByteSize(usable), ByteSize(spare))
            }
            None => "; smallest GPU: no GPU of the list".to_owned(),
        };
        let retries = Count(smallest.predicted.retries).of("retry", "retries");
        format!("  {name}: {}, {retries}{card}\n", ByteSize(bytes))
    };
    let rows = [("recorded settings", &advice.smallest_recorded), ("best settings", &advice.smallest_best)];
    let lines: String = rows.iter().filter_map(|(name, found)| Some(line(name, found.as_ref()?))).collect();
    match lines.is_empty() {
        true => "A request fails however much memory there is.\n".to_owned(),
        false => format!("Least memory without a failed request:\n{lines}"),
    }
}
