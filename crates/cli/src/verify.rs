//! `vramscope verify`: does the pool decide as the recorded allocator did?

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use vramscope_pool::Settings;
use vramscope_pool::rerun::{self, History, Verified};
use vramscope_trace::Recording;

use crate::failure::{Failure, Outcome};
use crate::input::Input;
use crate::screen;
use crate::units;

/// Arguments of `verify`.
#[derive(Args, Debug)]
pub(crate) struct VerifyOptions {
    /// A recording: .vram, a PyTorch snapshot (.pickle, .json) or an RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
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

#[derive(Debug, Default, Serialize)]
struct DeviceReport {
    device: u16,
    requests: u64,
    events: u64,
    matched: u64,
    divergence: Option<Divergence>,
    #[serde(skip)]
    assumed_pools: u64,
}

#[derive(Debug, Serialize)]
struct Divergence {
    event: u64,
    expected: String,
    got: String,
}

/// Compares, and says whether all was the same.
pub(crate) fn run(options: &VerifyOptions) -> Outcome<bool> {
    let recording = Input::open(&options.file)?.recording()?;
    let settings = recorded_settings(&options.file, &recording, options.limit_bytes)?;
    let mut devices: Vec<DeviceReport> = Vec::new();
    for history in histories(&options.file, &recording)? {
        let verified = rerun::verify(&history, &settings);
        let device = history.device().0;
        match devices.last_mut().filter(|report| report.device == device) {
            Some(report) => report.add(verified),
            None => {
                let mut report = DeviceReport { device, ..DeviceReport::default() };
                report.add(verified);
                devices.push(report);
            }
        }
    }
    let same = devices.iter().all(|device| device.divergence.is_none());
    let report = Report { devices };
    let text = if options.json {
        format!("{}\n", serde_json::to_string(&report).expect("numbers and text always serialize"))
    } else {
        report.devices.iter().map(DeviceReport::line).collect()
    };
    screen::print(&text)?;
    Ok(same)
}

/// The settings under which a recording was made.
pub(crate) fn recorded_settings(path: &Path, recording: &Recording, limit_bytes: Option<u64>) -> Outcome<Settings> {
    let conf = &recording.info().alloc_conf;
    let settings = Settings::parse(conf)
        .map_err(|error| Failure::file(path, format_args!("its allocator's settings {conf:?}: {error}")))?;
    Ok(Settings { limit_bytes, ..settings })
}

/// The histories of a recording's devices.
pub(crate) fn histories(path: &Path, recording: &Recording) -> Outcome<Vec<History>> {
    History::all_of(recording).map_err(|error| Failure::file(path, error))
}

impl DeviceReport {
    /// Adds a history of the device; there are several where events are missing in between.
    fn add(&mut self, verified: Verified) {
        self.requests += verified.requests;
        self.events += verified.events;
        self.matched += verified.matched;
        self.assumed_pools += verified.assumed_pools;
        if self.divergence.is_none() {
            self.divergence = verified.divergence.map(|divergence| Divergence {
                event: divergence.event,
                expected: divergence.expected,
                got: divergence.got,
            });
        }
    }

    fn line(&self) -> String {
        let requests = units::counted(self.requests, "request", "requests");
        let (matched, events) = (units::count(self.matched), units::counted(self.events, "event", "events"));
        let mut line = format!("device {}: {requests}; {matched} of {events} matched", self.device);
        if self.assumed_pools > 0 {
            let pools = units::counted(self.assumed_pools, "private pool", "private pools");
            line += &format!("; {pools} assumed that the recording does not name");
        }
        if let Some(Divergence { event, expected, got }) = &self.divergence {
            line += &format!("\n  at event {}\n    recorded: {expected}\n    the pool: {got}", units::count(*event));
        }
        line + "\n"
    }
}
