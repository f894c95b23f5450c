//! `vramscope simulate`: runs a recording's requests under other allocator settings.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use vramscope_insight::what_if::{DeviceWorkload, FiguresReport, setting_that_needs_capacity};
use vramscope_pool::Settings;
use vramscope_pool::rerun::{RunSummary, Workload};
use vramscope_trace::{ByteSize, Count, DeviceId, DurationNs, Percent};

use crate::error::{CommandError, Result};
use crate::input::Input;
use crate::operation::Operation;
use crate::simulation::{self, LimitArguments};
use crate::table;
use crate::terminal;

/// Text after the options in `vramscope simulate --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope simulate run.vram --alloc-conf expandable_segments:True
  vramscope simulate run.vram --alloc-conf max_split_size_mb:64 --capacity 40GiB --json";

/// Arguments of `vramscope simulate`: the recording, the settings to try and the capacity.
#[derive(Args, Debug)]
pub(crate) struct SimulateArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json), profiler trace or
    /// memory timeline (.json), or RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Settings to try, as in PYTORCH_CUDA_ALLOC_CONF:
    /// expandable_segments:True,max_split_size_mb:64
    #[arg(long, value_name = "CONF")]
    alloc_conf: String,
    #[command(flatten)]
    limits: LimitArguments,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `simulate --json`.
#[derive(Debug, Serialize)]
struct SimulationReport {
    devices: Vec<DeviceReport>,
}

/// A device in the output of `simulate --json`: recorded and simulated figures side by side.
#[derive(Debug, Serialize)]
struct DeviceReport {
    device: u16,
    /// Most bytes that the simulated allocator may reserve; `None` for no limit.
    capacity_bytes: Option<u64>,
    /// First event at which the pool diverges from the recorded allocator. Recorded retries and
    /// fragmentation cover the events before it.
    unverified_from: Option<u64>,
    /// Whether events are missing and only the events before the first gap were simulated.
    stops_at_gap: bool,
    recorded: FiguresReport,
    simulated: FiguresReport,
}

/// Runs a recording's requests under other settings, and prints recorded and simulated figures of
/// each device.
pub(crate) fn run(arguments: &SimulateArguments) -> Result {
    let conf_error = |error: &dyn std::fmt::Display| {
        CommandError::new(format_args!("--alloc-conf {:?}: {error}", arguments.alloc_conf))
    };
    let tried = Settings::parse(&arguments.alloc_conf).map_err(|error| conf_error(&error))?;
    let needs_capacity = setting_that_needs_capacity(&tried);
    let recording = Input::open(&arguments.file)?.into_recording()?;
    let mut devices: Vec<DeviceReport> = Vec::new();
    for device in simulation::workloads(&arguments.file, &recording, &arguments.limits, &Operation::on_terminal())? {
        let DeviceWorkload { workload, capacity_bytes, stops_at_gap, .. } = device;
        if let (Some(setting), None) = (needs_capacity, capacity_bytes) {
            let what = format!("{setting} needs the device's size, which this recording lacks: pass --capacity");
            return Err(conf_error(&what));
        }
        let simulated = simulate(&workload, &tried, capacity_bytes);
        devices.push(DeviceReport {
            device: workload.device().0,
            capacity_bytes,
            unverified_from: workload.unverified_from,
            stops_at_gap,
            recorded: workload.recorded.into(),
            simulated: simulated.into(),
        });
    }
    let report = SimulationReport { devices };
    if arguments.json {
        return terminal::print_json(&report);
    }
    terminal::print(&report.devices.iter().map(DeviceReport::text).collect::<String>())
}

/// Runs recorded requests in the pool on a simulated device of `capacity` bytes (`None`:
/// unlimited), and prints the speed on stderr.
fn simulate(requests: &Workload, settings: &Settings, capacity: Option<u64>) -> RunSummary {
    let start = Instant::now();
    let figures = requests.simulate(settings, capacity);
    let elapsed = start.elapsed();
    let calls = requests.calls();
    let calls_per_second = calls as f64 / elapsed.as_secs_f64().max(1e-9);
    terminal::message(format_args!(
        "simulated {} in {}, {} per second",
        Count(calls).of("call", "calls"),
        DurationNs(elapsed.as_nanos() as u64),
        Count(calls_per_second as u64)
    ));
    figures
}

impl DeviceReport {
    /// Returns the device's figures as a table for the terminal.
    fn text(&self) -> String {
        let title = DeviceId(self.device).to_string();
        let mut table = table::new([title.as_str(), "recorded", "simulated"], 1);
        let mut row = |name: &str, value: &dyn Fn(&FiguresReport) -> String| {
            table.add_row([&format!("  {name}"), &value(&self.recorded), &value(&self.simulated)]);
        };
        row("peak allocated", &|figures| ByteSize(figures.peak_allocated_bytes).to_string());
        row("peak reserved", &|figures| ByteSize(figures.peak_reserved_bytes).to_string());
        row("out of memory", &|figures| Count(figures.ooms).to_string());
        row("retries", &|figures| Count(figures.retries).to_string());
        row("device allocations", &|figures| Count(figures.device_allocations).to_string());
        row("peak fragmentation", &|figures| Percent(figures.peak_fragmentation).to_string());
        let mut text = table::render(table, None);
        text += &match self.capacity_bytes {
            Some(bytes) => format!("  simulated capacity: {}\n", ByteSize(bytes)),
            None => "  simulated capacity: unlimited\n".to_owned(),
        };
        if let Some(event) = self.unverified_from {
            text += &format!(
                "  From event {} on, the pool diverges from the recorded allocator (see vramscope verify);\n  \
                 recorded retries and fragmentation cover the events before it.\n",
                Count(event)
            );
        }
        text
    }
}
