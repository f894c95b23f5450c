//! `vramscope verify`: compares the pool's decisions with the recorded allocator's decisions.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use vramscope_pool::rerun::{self, Verification};
use vramscope_trace::{ByteSize, Count, DeviceId};

use crate::error::Result;
use crate::input::Input;
use crate::number::parse_device_bytes;
use crate::recorded;
use crate::terminal;

/// Text after the options in `vramscope verify --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope verify snapshot.pickle
  vramscope verify limited.vram --limit-bytes 1GiB --json

Exit code 1 means that the allocator diverged.";

/// Arguments of `vramscope verify`: the recording, and the memory limit of the recorded process.
#[derive(Args, Debug)]
pub(crate) struct VerifyArguments {
    /// Recording (.vram, or an .html export), PyTorch snapshot (.pickle, .json), profiler trace or
    /// memory timeline (.json), or RMM log (.csv); each also with .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Memory limit that the recorded process ran under, such as 40GiB; recordings do not contain
    /// it
    #[arg(long, value_name = "SIZE", value_parser = parse_device_bytes)]
    limit_bytes: Option<ByteSize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `verify --json`.
#[derive(Debug, Serialize)]
struct VerificationReport {
    devices: Vec<DeviceReport>,
}

/// A device in the output of `verify --json`: how many allocator events match the recording, and
/// the first that does not.
#[derive(Debug, Default, Serialize)]
struct DeviceReport {
    device: u16,
    requests: u64,
    events: u64,
    matched: u64,
    divergence: Option<Divergence>,
    /// Private pools that the comparison assumed because the recording does not identify them.
    assumed_private_pools: u64,
}

/// The first event at which the pool decides differently from the recorded allocator, in the output
/// of `verify --json`; `expected` is the recorded decision, `got` the pool's.
#[derive(Debug, Serialize)]
struct Divergence {
    event: u64,
    expected: String,
    got: String,
}

/// Repeats the recorded requests in vramscope's own caching allocator and compares its decisions
/// with the recorded ones. Returns true if all of them match.
pub(crate) fn run(arguments: &VerifyArguments) -> Result<bool> {
    let recording = Input::open(&arguments.file)?.into_recording()?;
    recorded::check_requests(&arguments.file, &recording, true)?;
    let settings = recorded::settings(&arguments.file, &recording, arguments.limit_bytes)?;
    let mut devices: Vec<DeviceReport> = Vec::new();
    for history in recorded::histories(&arguments.file, &recording)? {
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
    let all_match = devices.iter().all(|device| device.divergence.is_none());
    let report = VerificationReport { devices };
    if arguments.json {
        terminal::print_json(&report)?;
    } else {
        terminal::print(&report.devices.iter().map(DeviceReport::text).collect::<String>())?;
    }
    Ok(all_match)
}

impl DeviceReport {
    /// Adds the result for one history (uninterrupted sequence of events) of the device; a device
    /// has several histories if events are missing between them.
    fn add(&mut self, verified: Verification) {
        self.requests += verified.requests;
        self.events += verified.events;
        self.matched += verified.matched;
        self.assumed_private_pools += verified.assumed_private_pools;
        if self.divergence.is_none() {
            self.divergence = verified.divergence.map(|divergence| Divergence {
                event: divergence.event,
                expected: divergence.expected,
                got: divergence.got,
            });
        }
    }

    /// Returns the device's result as text for the terminal.
    fn text(&self) -> String {
        let requests = Count(self.requests).of("request", "requests");
        let (matched, events) = (Count(self.matched), Count(self.events).of("event", "events"));
        let mut text = format!("{}: {requests}; {matched} of {events} match", DeviceId(self.device));
        if self.assumed_private_pools > 0 {
            let pools = Count(self.assumed_private_pools).of("private pool", "private pools");
            text += &format!("; assumed {pools} that the recording does not identify");
        }
        if let Some(Divergence { event, expected, got }) = &self.divergence {
            text += &format!("\n  at event {}\n    recorded: {expected}\n    the pool: {got}", Count(*event));
        }
        text + "\n"
    }
}
