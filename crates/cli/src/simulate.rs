//! `vramscope simulate`: the same requests under other allocator settings.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use vramscope_pool::Settings;
use vramscope_pool::rerun::{Figures, Requests};
use vramscope_trace::{DeviceId, Recording};

use crate::failure::{Failure, Outcome};
use crate::input::Input;
use crate::screen;
use crate::units;
use crate::verify::{histories, recorded_settings};

/// Arguments of `simulate`.
#[derive(Args, Debug)]
pub(crate) struct SimulateOptions {
    /// A recording: .vram, a PyTorch snapshot (.pickle, .json) or an RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The settings to try, as in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True,max_split_size_mb:64
    #[arg(long, value_name = "CONF")]
    alloc_conf: String,
    /// The most that the simulated allocator may hold [default: --limit-bytes; else what the recorded requests that failed say the
    /// recorded one could have; else what the device has, where the recording says it; else no end]
    #[arg(long, value_name = "BYTES")]
    capacity: Option<u64>,
    /// What the recorded program had limited its allocator to, which recordings do not say
    #[arg(long, value_name = "N")]
    limit_bytes: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    devices: Vec<DeviceReport>,
}

#[derive(Debug, Serialize)]
struct DeviceReport {
    device: u16,
    recorded: FiguresReport,
    simulated: FiguresReport,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct FiguresReport {
    peak_allocated_bytes: u64,
    peak_reserved_bytes: u64,
    ooms: u64,
    retries: u64,
    device_allocations: u64,
    peak_fragmentation: f64,
}

/// Simulates each device of the recording.
pub(crate) fn run(options: &SimulateOptions) -> Outcome {
    let tried = Settings::parse(&options.alloc_conf)
        .map_err(|error| Failure::new(format_args!("--alloc-conf {:?}: {error}", options.alloc_conf)))?;
    let recording = Input::open(&options.file)?.recording()?;
    let recorded_under = recorded_settings(&options.file, &recording, options.limit_bytes)?;
    let mut devices: Vec<DeviceReport> = Vec::new();
    for history in histories(&options.file, &recording)? {
        let device = history.device();
        if devices.last().is_some_and(|report| report.device == device.0) {
            // Requests before and after missing events are not one program.
            screen::note(format_args!("device {}: only what comes before the missing events is simulated", device.0));
            continue;
        }
        let requests = Requests::of(history, &recorded_under).map_err(|error| Failure::file(&options.file, error))?;
        let capacity =
            options.capacity.or(requests.recorded_capacity_bytes).or_else(|| total_bytes(&recording, device));
        // A share of no end has none.
        let needs_capacity = tried.per_process_memory_fraction < 1.0 || tried.garbage_collection_threshold > 0.0;
        if needs_capacity && capacity.is_none() {
            return Err(Failure::new(format_args!(
                "--alloc-conf {:?}: how much memory that is a share of, the recording does not say: name it with --capacity",
                options.alloc_conf
            )));
        }
        let simulated = simulate(&requests, &tried, capacity);
        devices.push(DeviceReport {
            device: device.0,
            recorded: requests.recorded.into(),
            simulated: simulated.into(),
        });
    }
    let report = Report { devices };
    if options.json {
        let json = serde_json::to_string(&report).expect("finite numbers always serialize");
        return screen::print(&format!("{json}\n"));
    }
    screen::print(&report.devices.iter().map(DeviceReport::table).collect::<String>())
}

/// What the recorded device has in all, where the recording says it.
fn total_bytes(recording: &Recording, device: DeviceId) -> Option<u64> {
    let devices = &recording.info().devices;
    devices.iter().find(|info| info.device == device.0).map(|info| info.total_bytes).filter(|&bytes| bytes > 0)
}

fn simulate(requests: &Requests, settings: &Settings, capacity: Option<u64>) -> Figures {
    if let Some(event) = requests.unverified_from {
        let event = units::count(event);
        screen::note(format_args!(
            "from event {event} on the pool does not decide as the recorded allocator did (see `verify`); the recorded retries and fragmentation are those up to there"
        ));
    }
    if let Some(bytes) = capacity {
        screen::note(format_args!("the simulated allocator may hold {} bytes", units::count(bytes)));
    }
    let begin = Instant::now();
    let figures = requests.simulate(settings, capacity);
    let elapsed = begin.elapsed();
    let (calls, each) = (requests.calls(), elapsed.as_secs_f64() / requests.calls().max(1) as f64);
    screen::note(format_args!(
        "{} in {}, {} a second",
        units::counted(calls, "call", "calls"),
        units::duration(elapsed),
        units::count((1.0 / each.max(1e-12)) as u64)
    ));
    figures
}

impl From<Figures> for FiguresReport {
    fn from(figures: Figures) -> Self {
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
    fn table(&self) -> String {
        let (recorded, simulated) = (&self.recorded, &self.simulated);
        let mut out = format!("device {:<20}{:>14}{:>14}\n", self.device, "recorded", "simulated");
        let mut row = |name: &str, of: &dyn Fn(&FiguresReport) -> String| {
            writeln!(out, "  {name:<25}{:>14}{:>14}", of(recorded), of(simulated))
                .expect("writing to a string does not fail");
        };
        row("peak allocated", &|figures| units::bytes(figures.peak_allocated_bytes));
        row("peak reserved", &|figures| units::bytes(figures.peak_reserved_bytes));
        row("requests that failed", &|figures| units::count(figures.ooms));
        row("retries", &|figures| units::count(figures.retries));
        row("device allocations", &|figures| units::count(figures.device_allocations));
        row("peak fragmentation", &|figures| format!("{:.1} %", figures.peak_fragmentation * 100.0));
        out
    }
}
