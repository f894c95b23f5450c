//! `vramscope demo`: real training, watched live.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use vramscope_collector::{
    Content, Controls, FileError, HostDevice, HostPool, Hub, MemoryDevice, Outputs, Overflow, PUSH_VARIABLE, Push,
    Recorder, Settings, push_from_env,
};
use vramscope_demo::{Options, Step};
use vramscope_trace::{DeviceId, DeviceInfo, Info};

use crate::failure::{Failure, Outcome};
use crate::file::FileOptions;
use crate::interrupt::Interrupts;
use crate::screen;
use crate::serving::ServeOptions;
use crate::units;

/// Steps between two lines that say how the training goes.
const STEPS_PER_LINE: u64 = 10;
/// The most memory that the training may take from the machine.
const CAPACITY_BYTES: u64 = 512 << 20;
/// What it is recorded as.
const DEVICE: DeviceId = DeviceId(0);

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoOptions {
    /// Where the model's memory is
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    device: Device,
    /// Train for so many steps, then go on serving [default: until Ctrl-C]
    #[arg(long, value_name = "N")]
    steps: Option<u64>,
    /// Write the recording to a file, too
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// When the training is faster than the recorder: wait for it, or drop events and say how many [default: wait where there is a file]
    #[arg(long, value_enum)]
    overflow: Option<OverflowChoice>,
    #[command(flatten)]
    file: FileOptions,
    #[command(flatten)]
    serve: ServeOptions,
}

/// What the model trains on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// The best there is
    Auto,
    /// A GPU
    Cuda,
    /// This machine's processor and memory
    Host,
}

/// What is done when a queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OverflowChoice {
    Wait,
    Drop,
}

/// Trains, records and serves until it is interrupted.
pub(crate) fn run(options: &DemoOptions) -> Outcome {
    if options.device == Device::Cuda {
        return Err(Failure::new("--device cuda: this vramscope cannot train on a GPU yet; use --device host"));
    }
    if options.record.is_none() && !options.file.keep().is_everything() {
        return Err(Failure::new("--keep and --keep-bytes say how much a file keeps; name it with --record"));
    }
    let training = Options { steps: options.steps, ..Options::default() };
    let interrupts = Interrupts::listen()?;
    let (hub, controls) = (Hub::default(), Controls::default());
    // What can fail comes first, so that a mistake costs no earlier recording.
    let content = Content { controls: Some(controls.clone()), ..Content::live(hub.clone()) };
    let server = options.serve.start(content)?;
    let (device, settings) = (HostDevice::new(CAPACITY_BYTES), Settings::default());
    let recorder = Recorder::start(info(&device, &settings), outputs(options, hub.clone())?);
    let (recorder, handle) = recorder.map_err(|error| Failure::new(format_args!("the recorder: {error}")))?;
    let pool = HostPool::recorded(device, settings, &handle);
    controls.offer_recording(&hub, &handle, DEVICE, PathBuf::new());
    controls.offer_empty_cache_of(&pool);
    let address = push_from_env().map_err(Failure::new)?;
    let push = address.map(|address| Push::start(address, "vramscope demo", &hub, |what| screen::note(what)));
    let push = push.transpose().map_err(|error| Failure::new(format_args!("{PUSH_VARIABLE}: {error}")))?;
    options.serve.announce(&server)?;

    let mut printed = Ok(());
    let mut tell = |step| {
        if printed.is_ok() {
            printed = tell_step(step, options.steps);
        }
    };
    let trained = vramscope_demo::run(&training, pool, &interrupts.flag(), &mut tell);
    // Whoever watches is given the rest and told that it is the end; then the server may go.
    let summary = recorder.stop();
    drop(push);
    if let Some(path) = &options.record
        && summary.file_error.is_none()
    {
        let events = units::counted(summary.events, "event", "events");
        screen::note(format_args!("{}: {events} in {}", path.display(), units::bytes(summary.bytes)));
    }
    let trained = trained.map_err(Failure::new)?;
    printed?;
    if !interrupts.requested() {
        let steps = units::counted(trained.steps, "step is", "steps are");
        let url = server.url();
        // The token was said once, and is said nowhere else.
        let url = url.split('?').next().unwrap_or_default();
        screen::note(format_args!("{steps} done; {url} stays there until Ctrl-C"));
        interrupts.wait();
    }
    summary.file_error.map_or(Ok(()), |FileError { name, error }| {
        Err(Failure::new(format_args!("{name}: not all was written: {error}")))
    })
}

fn info(device: &HostDevice, settings: &Settings) -> Info {
    Info {
        source: "vramscope demo".to_owned(),
        writer: concat!("vramscope ", env!("CARGO_PKG_VERSION")).to_owned(),
        alloc_conf: settings.to_conf(),
        devices: vec![DeviceInfo { device: DEVICE.0, ..device.info() }],
        ..Info::default()
    }
}

fn outputs(options: &DemoOptions, hub: Hub) -> Outcome<Outputs> {
    let overflow = match options.overflow {
        Some(OverflowChoice::Wait) => Overflow::Wait,
        Some(OverflowChoice::Drop) => Overflow::Drop,
        None if options.record.is_some() => Overflow::Wait,
        None => Overflow::Drop,
    };
    let mut outputs = Outputs { hub: Some(hub), overflow, ..Outputs::default() };
    if let Some(path) = &options.record {
        outputs.file = Some(options.file.create(path)?);
        outputs.on_file_error = Some(Box::new(|error| {
            screen::note(format_args!("{error}; the file ends here, the live view goes on"));
        }));
    }
    Ok(outputs)
}

fn tell_step(step: Step, last: Option<u64>) -> Outcome {
    let Step { number, loss, accuracy } = step;
    if number != 1 && !number.is_multiple_of(STEPS_PER_LINE) && last != Some(number) && accuracy.is_none() {
        return Ok(());
    }
    let read = accuracy.map(|part| format!("  {:.1} % of unseen digits read right", part * 100.0)).unwrap_or_default();
    screen::print(&format!("step {number:>5}  loss {loss:.4}{read}\n"))
}
