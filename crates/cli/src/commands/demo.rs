//! `vramscope demo`: trains a model and shows its memory live.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use vramscope_collector::{
    Content, Controls, FileError, HostDevice, HostPool, Hub, MemoryDevice, Outputs, Overflow, PUSH_VARIABLE, Push,
    Recorder, Settings, push_from_env,
};
use vramscope_demo::{Options, Step};
use vramscope_trace::{ByteSize, Count, DeviceId, DeviceInfo, Percent, RecordingInfo};

use crate::error::{CommandError, Result};
use crate::number::parse_whole;
use crate::retention::RetentionArguments;
use crate::server::{AnnounceOn, ServerArguments};
use crate::signals::Interrupts;
use crate::terminal;

/// Text after the options in `vramscope demo --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope demo
  vramscope demo --steps 200 --record run.vram --no-open";

/// Number of training steps after which a line of progress is printed.
const STEPS_PER_LINE: u64 = 10;
/// Most bytes of this machine's memory that the demo's training may take; a request beyond fails as
/// out of memory.
const CAPACITY_BYTES: u64 = 512 << 20;
/// The number of the demo's only device in its recording.
const DEVICE: DeviceId = DeviceId(0);

/// Arguments of `vramscope demo`: the device, the number of steps, the file to record to, and the
/// server.
#[derive(Args, Debug)]
pub(crate) struct DemoArguments {
    /// Device to train on
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    device: Device,
    /// Train this many steps, then only serve the page [default: until Ctrl-C]
    #[arg(long, value_name = "N", value_parser = parse_whole::<u64>)]
    steps: Option<u64>,
    /// Also write the recording to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// What to do when the training outpaces the recorder [default: wait with --record, else drop]
    #[arg(long, value_enum, value_name = "ACTION")]
    overflow: Option<OverflowArgument>,
    #[command(flatten)]
    retention: RetentionArguments,
    #[command(flatten)]
    server: ServerArguments,
}

/// Values of `demo --device`: where the training takes its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// The best available device
    Auto,
    /// A GPU
    Cuda,
    /// This machine's processor and memory
    Host,
}

/// Values of `demo --overflow`: whether the training waits or events are dropped when the recorder
/// falls behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OverflowArgument {
    /// Slow down the training
    Wait,
    /// Drop events; the recording counts them
    Drop,
}

/// Trains a model, records it and serves the page until the command is interrupted.
pub(crate) fn run(arguments: &DemoArguments) -> Result {
    if arguments.device == Device::Cuda {
        return Err(CommandError::new("--device cuda: training on a GPU is not supported yet; use --device host"));
    }
    arguments.retention.require_file(arguments.record.as_deref())?;
    let training = Options { steps: arguments.steps, ..Options::default() };
    let interrupts = Interrupts::listen()?;
    let (hub, controls) = (Hub::default(), Controls::default());
    // Starts everything that can fail before it replaces an earlier recording.
    let content = Content { controls: Some(controls.clone()), ..Content::live(hub.clone()) };
    let server = arguments.server.start(content)?;
    let (device, settings) = (HostDevice::new(CAPACITY_BYTES), Settings::default());
    let recorder = Recorder::start(info(&device, &settings), outputs(arguments, hub.clone())?);
    let (recorder, handle) =
        recorder.map_err(|error| CommandError::new(format_args!("cannot start the recorder: {error}")))?;
    let pool = HostPool::recorded(device, settings, &handle);
    controls.offer_recording(&hub, &handle, DEVICE, PathBuf::new());
    controls.offer_empty_cache_of(&pool);
    let address = push_from_env().map_err(CommandError::new)?;
    let push =
        address.map(|address| Push::start(address, "vramscope demo", vramscope_collector::Rank::from_env(), &hub));
    let push = push.transpose().map_err(|error| CommandError::new(format_args!("{PUSH_VARIABLE}: {error}")))?;
    arguments.server.announce(&server, AnnounceOn::Stdout)?;

    let mut printed = Ok(());
    let mut on_step = |step| {
        if printed.is_ok() {
            printed = print_step(step, arguments.steps);
        }
    };
    let trained = vramscope_demo::run(&training, pool, &interrupts.flag(), &mut on_step);
    // Viewers receive the rest and the end of the recording before the server stops.
    let summary = recorder.stop();
    drop(push);
    if let Some(path) = &arguments.record
        && summary.file_error.is_none()
    {
        let events = Count(summary.events).of("event", "events");
        terminal::message(format_args!("{}: {events}, {}", path.display(), ByteSize(summary.bytes)));
    }
    let trained = trained.map_err(CommandError::new)?;
    printed?;
    if !interrupts.requested() {
        let steps = Count(trained.steps).of("step", "steps");
        let url = server.url();
        // Without the token, which is printed once.
        let url = url.split('?').next().unwrap_or_default();
        terminal::message(format_args!("trained {steps}; serving {url} until Ctrl-C"));
        interrupts.wait();
    }
    summary.file_error.map_or(Ok(()), |FileError { name, error }| {
        Err(CommandError::new(format_args!("{name}: the recording is incomplete: {error}")))
    })
}

/// Returns the description of the demo and its device with which the recording begins.
fn info(device: &HostDevice, settings: &Settings) -> RecordingInfo {
    RecordingInfo {
        source: "vramscope demo".to_owned(),
        writer: concat!("vramscope ", env!("CARGO_PKG_VERSION")).to_owned(),
        alloc_conf: settings.to_conf(),
        devices: vec![DeviceInfo { device: DEVICE.0, ..device.info() }],
        ..RecordingInfo::default()
    }
}

/// Returns where the demo's recording goes: to `hub`, which feeds the page, and to the file of
/// `--record`, which is created.
fn outputs(arguments: &DemoArguments, hub: Hub) -> Result<Outputs> {
    let overflow = match arguments.overflow {
        Some(OverflowArgument::Wait) => Overflow::Wait,
        Some(OverflowArgument::Drop) => Overflow::Drop,
        None if arguments.record.is_some() => Overflow::Wait,
        None => Overflow::Drop,
    };
    let mut outputs = Outputs { hub: Some(hub), overflow, ..Outputs::default() };
    if let Some(path) = &arguments.record {
        outputs.file = Some(arguments.retention.create(path)?);
        outputs.on_file_error = Some(Box::new(|error| {
            terminal::message(format_args!("{error}; the file ends here, the live view continues"));
        }));
    }
    Ok(outputs)
}

/// Prints a line for every tenth step, the first, the `last`, and those that measured the accuracy;
/// prints nothing for other steps.
fn print_step(step: Step, last: Option<u64>) -> Result {
    let Step { number, loss, accuracy } = step;
    if number != 1 && !number.is_multiple_of(STEPS_PER_LINE) && last != Some(number) && accuracy.is_none() {
        return Ok(());
    }
    let accuracy = accuracy.map(|share| format!("  accuracy {}", Percent(f64::from(share)))).unwrap_or_default();
    terminal::print(&format!("step {number:>5}  loss {loss:.4}{accuracy}\n"))
}
