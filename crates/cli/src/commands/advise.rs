//! `vramscope advise`: the allocator settings that need least memory, and the smallest GPU.

use std::collections::HashMap;
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use vramscope_insight::advice::{
    Advice, Advisor, MemoryBounds, SmallestCapacity, Trial, required_pytorch, smallest_card,
};
use vramscope_insight::packing::DevicePacker;
use vramscope_pool::rerun::Workload;
use vramscope_pool::{CONF_VARIABLES, Settings};
use vramscope_trace::{ByteSize, Count, DeviceId, DeviceLifetimes, DurationNs, Lifetimes, Percent, Recording};

use crate::bars;
use crate::error::{CommandError, Result};
use crate::input::Input;
use crate::recorded;
use crate::signals;
use crate::simulation::{self, DeviceWorkload, FiguresReport, LimitArguments};
use crate::table;
use crate::terminal;

/// Text after the options in `vramscope advise --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope advise run.vram
  vramscope advise limited.pickle --limit-bytes 40GiB --json";

/// Steps of the search for a placement of each device's requests: some two seconds.
const PACKING_STEPS: u64 = 400_000_000;
/// Number of settings in the table.
const TABLE_ROWS: usize = 10;

/// Arguments of `vramscope advise`: the recording and its memory limits.
#[derive(Args, Debug)]
pub(crate) struct AdviseArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json) or RMM log (.csv);
    /// each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    limits: LimitArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `advise --json`.
#[derive(Debug, Serialize)]
struct Report {
    devices: Vec<DeviceReport>,
}

/// The answer for one device in the output of `advise --json`.
#[derive(Debug, Serialize)]
struct DeviceReport {
    device: u16,
    /// The recorded settings.
    alloc_conf: String,
    /// Most bytes that the simulated allocator may reserve; `None` for no limit.
    capacity_bytes: Option<u64>,
    /// First event at which the pool diverges from the recorded allocator.
    unverified_from: Option<u64>,
    /// Whether events are missing and only those before the first gap were simulated.
    stops_at_gap: bool,
    recorded: FiguresReport,
    floor_bytes: u64,
    /// Height of an offline placement; `None` if events are missing.
    packed_bytes: Option<u64>,
    tried: Vec<TrialReport>,
    best: BestReport,
    /// Whether the best settings are more than 1% better than the recorded ones.
    worthwhile: bool,
    /// The simplest settings within 1% of the best; `None` if that is the best.
    simpler: Option<TrialReport>,
    smallest: Option<SmallestReport>,
    smallest_recorded: Option<SmallestReport>,
}

/// Settings and their simulated figures in the output of `advise --json`.
#[derive(Debug, Serialize)]
struct TrialReport {
    alloc_conf: String,
    predicted: FiguresReport,
}

/// The best settings in the output of `advise --json`.
#[derive(Debug, Serialize)]
struct BestReport {
    #[serde(flatten)]
    trial: TrialReport,
    /// Bytes less at the reserved peak than under the recorded settings, simulated.
    saves_bytes: i64,
    /// The first version of PyTorch that accepts the settings.
    pytorch: String,
}

/// The least memory that the program runs in, in the output of `advise --json`.
#[derive(Debug, Serialize)]
struct SmallestReport {
    capacity_bytes: u64,
    alloc_conf: String,
    /// The smallest GPU with that much usable memory.
    card: Option<&'static str>,
    predicted: FiguresReport,
}

/// Tries allocator settings on a recording's requests, and prints the best settings and the least
/// memory for each device.
pub(crate) fn run(arguments: &AdviseArguments) -> Result {
    let progress = terminal::progress_bar("Trying settings".to_owned());
    let shown = progress.clone();
    signals::exit_on_signal(move || shown.finish_and_clear())?;
    let recording = Input::open(&arguments.file)?.into_recording()?;
    let settings = recorded::settings(&arguments.file, &recording, arguments.limits.limit_bytes)?;
    let mut devices = Vec::new();
    thread::scope(|scope| {
        let packing = scope.spawn(|| packed_heights(&arguments.file, &recording));
        for device in simulation::workloads(&arguments.file, &recording, &arguments.limits)? {
            if device.workload.requests() > 0 {
                let advice = advise(&device.workload, &settings, device.capacity_bytes, &progress);
                devices.push((device, advice));
            }
        }
        let packed = packing.join().unwrap_or_else(|panic| panic::resume_unwind(panic))?;
        for (device, advice) in devices.iter_mut().filter(|(device, _)| !device.stops_at_gap) {
            advice.packed_bytes = packed.get(&device.workload.device()).copied();
        }
        Ok(())
    })?;
    progress.finish_and_clear();
    if devices.is_empty() {
        return Err(CommandError::file(
            &arguments.file,
            "it contains no requests to try settings on: record while the program allocates",
        ));
    }
    if arguments.json {
        let devices = devices.iter().map(|(device, advice)| DeviceReport::new(device, advice)).collect();
        let json = serde_json::to_string(&Report { devices }).expect("finite numbers always serialize");
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&devices.iter().map(|(device, advice)| text(device, advice)).collect::<Vec<_>>().join("\n"))
}

/// Returns the height of an offline placement of each device's requests, in bytes. `path` is for
/// error messages.
fn packed_heights(path: &Path, recording: &Recording) -> Result<HashMap<DeviceId, u64>> {
    let lifetimes = Lifetimes::from_recording(recording).map_err(|error| CommandError::file(path, error))?;
    // Without a placement the advice is complete but for one figure.
    let height = |(device, lifetimes): (DeviceId, &DeviceLifetimes)| {
        Some((device, DevicePacker::new(lifetimes).ok()?.advance(PACKING_STEPS).height_bytes))
    };
    Ok(lifetimes.devices().filter_map(height).collect())
}

/// Makes the runs that the advice needs, as many at once as there are processors.
fn advise(workload: &Workload, settings: &Settings, capacity_bytes: Option<u64>, progress: &ProgressBar) -> Advice {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let start = Instant::now();
    let mut advisor = Advisor::new(workload, settings, capacity_bytes);
    thread::scope(|scope| {
        let (sender, results) = mpsc::channel();
        loop {
            while advisor.outstanding_runs() < threads {
                let Some(run) = advisor.next_run() else { break };
                let sender = sender.clone();
                scope.spawn(move || {
                    let summary = panic::catch_unwind(|| run.simulate(workload));
                    // The receiver outlives all runs.
                    let _ = sender.send((run, summary));
                });
            }
            if advisor.outstanding_runs() == 0 {
                break;
            }
            let (run, summary) = results.recv().expect("a sender exists");
            advisor.finish(&run, summary.unwrap_or_else(|panic| panic::resume_unwind(panic)));
            let (finished, all) = advisor.progress();
            progress.set_length(all as u64);
            progress.set_position(finished as u64);
        }
    });
    let (runs, _) = advisor.progress();
    terminal::message(format_args!(
        "simulated {} of {} in {}",
        Count(runs as u64).of("run", "runs"),
        Count(workload.calls()).of("call", "calls"),
        DurationNs(start.elapsed().as_nanos() as u64)
    ));
    advisor.into_advice().expect("all runs are finished")
}

impl DeviceReport {
    fn new(device: &DeviceWorkload, advice: &Advice) -> Self {
        let workload = &device.workload;
        let (major, minor) = required_pytorch(&advice.best().settings);
        let best = BestReport {
            trial: advice.best().into(),
            saves_bytes: advice.saved_bytes(),
            pytorch: format!("{major}.{minor}"),
        };
        Self {
            device: workload.device().0,
            alloc_conf: advice.baseline().settings.to_conf(),
            capacity_bytes: device.capacity_bytes,
            unverified_from: workload.unverified_from,
            stops_at_gap: device.stops_at_gap,
            recorded: advice.recorded.into(),
            floor_bytes: advice.floor_bytes,
            packed_bytes: advice.bounds().packed_bytes,
            tried: advice.tried.iter().map(TrialReport::from).collect(),
            best,
            worthwhile: advice.is_worthwhile(),
            simpler: advice.simpler().map(TrialReport::from),
            smallest: advice.smallest().map(SmallestReport::from),
            smallest_recorded: advice.smallest_recorded.as_ref().map(SmallestReport::from),
        }
    }
}

impl From<&Trial> for TrialReport {
    fn from(trial: &Trial) -> Self {
        Self { alloc_conf: trial.settings.to_conf(), predicted: trial.predicted.into() }
    }
}

impl From<&SmallestCapacity> for SmallestReport {
    fn from(smallest: &SmallestCapacity) -> Self {
        Self {
            capacity_bytes: smallest.capacity_bytes,
            alloc_conf: smallest.settings.to_conf(),
            card: smallest_card(smallest.capacity_bytes).map(|card| card.name),
            predicted: smallest.predicted.into(),
        }
    }
}

/// Returns a device's answer as text for the terminal.
fn text(device: &DeviceWorkload, advice: &Advice) -> String {
    let workload = &device.workload;
    let capacity = device.capacity_bytes.map_or("unlimited".to_owned(), |bytes| ByteSize(bytes).to_string());
    let tried = Count(advice.tried.len() as u64).of("setting", "settings");
    let mut text =
        format!("{}: tried {tried} on {} calls, capacity {capacity}\n\n", workload.device(), Count(workload.calls()));
    text += &best_text(advice);
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

/// Returns the line to paste and what it saves.
fn best_text(advice: &Advice) -> String {
    let (best, before) = (advice.best(), advice.baseline());
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
        0.. => format!("  saves {amount} ({share}) of the reserved peak"),
        _ => format!("  takes {amount} ({share}) more at the reserved peak"),
    };
    let avoided = before.predicted.ooms.saturating_sub(best.predicted.ooms);
    if avoided > 0 {
        text += &format!("; avoids {} of {} failed requests", Count(avoided), Count(before.predicted.ooms));
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

/// Returns settings as text; that of PyTorch's defaults is not empty.
fn conf_or_default(settings: &Settings) -> String {
    match settings.to_conf() {
        conf if conf.is_empty() => "PyTorch's defaults".to_owned(),
        conf => conf,
    }
}

/// Returns the chart of what the program needs and what allocators reserve for it.
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

/// Returns the least memory under the recorded and the best settings, with the GPU for each.
fn smallest_text(advice: &Advice) -> String {
    let line = |name: &str, smallest: &SmallestCapacity| {
        let bytes = smallest.capacity_bytes;
        let card = match smallest_card(bytes) {
            Some(card) => format!("{} ({} usable)", card.name, ByteSize(card.usable_bytes())),
            None => "no GPU of the list".to_owned(),
        };
        let retries = Count(smallest.predicted.retries).of("retry", "retries");
        format!("  {name}: {}, {retries}; smallest GPU: {card}\n", ByteSize(bytes))
    };
    let rows = [("recorded settings", &advice.smallest_recorded), ("best settings", &advice.smallest_best)];
    let lines: String = rows.iter().filter_map(|(name, found)| Some(line(name, found.as_ref()?))).collect();
    match lines.is_empty() {
        true => "A request fails however much memory there is.\n".to_owned(),
        false => format!("Least memory without a failed request:\n{lines}"),
    }
}
