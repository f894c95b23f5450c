//! `vramscope simulate`: runs a recording's requests under other allocator settings.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use vramscope_pool::Settings;
use vramscope_pool::rerun::{RunSummary, Workload};
use vramscope_trace::{ByteSize, Count, DeviceId, DurationNs, Percent, Recording};

use crate::error::{CommandError, Result};
use crate::input::Input;
use crate::recorded;
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
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json) or RMM log (.csv);
    /// each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Settings to try, as in PYTORCH_CUDA_ALLOC_CONF:
    /// expandable_segments:True,max_split_size_mb:64
    #[arg(long, value_name = "CONF")]
    alloc_conf: String,
    /// Most bytes that the simulated allocator may reserve, such as 40GiB [default: --limit-bytes;
    /// else the limit that the recorded out-of-memory errors imply; else the device's memory; else
    /// unlimited]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteSize>,
    /// Memory limit that the recorded process ran under, such as 40GiB; recordings do not contain
    /// it
    #[arg(long, value_name = "SIZE")]
    limit_bytes: Option<ByteSize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `simulate --json`.
#[derive(Debug, Serialize)]
struct Report {
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
    /// Whether events are missing and only those before the first gap were simulated.
    stops_at_gap: bool,
    recorded: FiguresReport,
    simulated: FiguresReport,
}

/// Peaks and error counts of one device, as recorded or as simulated, in the output of
/// `simulate --json`; fragmentation is 0 to 1.
#[derive(Clone, Copy, Debug, Serialize)]
struct FiguresReport {
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    ooms: u64,
    retries: u64,
    device_allocations: u64,
    peak_fragmentation: f64,
}

/// Runs a recording's requests under other settings, and prints recorded and simulated figures of
/// each device.
pub(crate) fn run(arguments: &SimulateArguments) -> Result {
    let conf_error = |error: &dyn std::fmt::Display| {
        CommandError::new(format_args!("--alloc-conf {:?}: {error}", arguments.alloc_conf))
    };
    let tried = Settings::parse(&arguments.alloc_conf).map_err(|error| conf_error(&error))?;
    // Both settings are shares of the capacity.
    let needs_capacity = if tried.garbage_collection_threshold > 0.0 {
        Some("garbage_collection_threshold")
    } else if tried.per_process_memory_fraction < 1.0 {
        Some("per_process_memory_fraction")
    } else {
        None
    };
    let recording = Input::open(&arguments.file)?.into_recording()?;
    let recorded_settings = recorded::settings(&arguments.file, &recording, arguments.limit_bytes)?;
    let stops_at_gap = recorded::has_missing_events(&recording);
    let mut devices: Vec<DeviceReport> = Vec::new();
    for history in recorded::histories(&arguments.file, &recording)? {
        let device = history.device();
        if let Some(report) = devices.last_mut().filter(|report| report.device == device.0) {
            // Requests before and after missing events do not belong to one program run.
            report.stops_at_gap = true;
            continue;
        }
        let requests =
            Workload::new(history, &recorded_settings).map_err(|error| CommandError::file(&arguments.file, error))?;
        let capacity = arguments.capacity.map(|ByteSize(bytes)| bytes);
        let capacity = capacity.or(requests.recorded_capacity_bytes).or_else(|| device_bytes(&recording, device));
        if let (Some(setting), None) = (needs_capacity, capacity) {
            let what = format!("{setting} needs the device's size, which this recording lacks: pass --capacity");
            return Err(conf_error(&what));
        }
        let simulated = simulate(&requests, &tried, capacity);
        devices.push(DeviceReport {
            device: device.0,
            capacity_bytes: capacity,
            unverified_from: requests.unverified_from,
            stops_at_gap,
            recorded: requests.recorded.into(),
            simulated: simulated.into(),
        });
    }
    for report in devices.iter().filter(|report| report.stops_at_gap) {
        let device = DeviceId(report.device);
        terminal::message(format_args!("{device}: events are missing; only those before are simulated"));
    }
    let report = Report { devices };
    if arguments.json {
        let json = serde_json::to_string(&report).expect("finite numbers always serialize");
        return terminal::print(&format!("{json}\n"));
    }
    terminal::print(&report.devices.iter().map(DeviceReport::text).collect::<String>())
}

/// Returns the size of a recorded device's memory in bytes, or `None` if the recording lacks it.
fn device_bytes(recording: &Recording, device: DeviceId) -> Option<u64> {
    let devices = &recording.info().devices;
    devices.iter().find(|info| info.device == device.0).map(|info| info.total_bytes).filter(|&bytes| bytes > 0)
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

impl From<RunSummary> for FiguresReport {
    fn from(figures: RunSummary) -> Self {
        Self {
            peak_allocated_bytes: figures.peak_allocated_bytes,
            peak_reserved_bytes: figures.peak_reserved_bytes,
            ooms: figures.ooms,
            retries: figures.retries,
            device_allocations: figures.device_allocations,
            peak_fragmentation: figures.peak_fragmentation,
        }
    }
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
