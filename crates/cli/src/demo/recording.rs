//! The device, its recorded pool and the recorder of a demo.

use std::path::Path;
use std::sync::{Arc, Once};

use vramscope_collector::{
    Controls, FileError, HostDevice, HostPool, Hub, MemoryDevice, Outputs, Overflow, Recorder, RecorderHandle,
    Settings, Summary, redact_from_env,
};
use vramscope_demo::techniques::{DeviceKind, Plan, TechniqueError};
use vramscope_demo::{CudaContext, CudaDevice, CudaError, CudaPool, Device};
use vramscope_trace::{ByteSize, Count, DeviceId, DeviceInfo, RecordingInfo};

use super::arguments::{DemoArguments, DeviceArgument, OverflowArgument};
use crate::error::{CommandError, Result};
use crate::terminal;

/// Capacity of the host device, in bytes. A request beyond it fails as out of memory.
const CAPACITY_BYTES: u64 = 1 << 30;
/// The number of the demo's only device in its recording.
pub(super) const DEVICE: DeviceId = DeviceId(0);

/// The reason why no GPU can be used.
#[derive(Debug)]
struct GpuProblem {
    reason: String,
    /// True if the machine has a GPU, which the user may expect to be used.
    has_gpu: bool,
}

impl GpuProblem {
    /// Returns an error with `--device cuda`. With `auto`, warns if the machine has a GPU.
    fn fall_back_to_host(self, argument: DeviceArgument) -> Result {
        /// Limits the warning to one, because `--compare` opens the device for each run.
        static WARNING: Once = Once::new();
        let Self { reason, has_gpu } = self;
        if argument == DeviceArgument::Cuda {
            return Err(CommandError::new(format_args!("--device cuda: {reason}, or use --device host")));
        }
        if has_gpu {
            WARNING.call_once(|| {
                terminal::message(format_args!("warning: training on the host instead of the GPU: {reason}"));
            });
        }
        Ok(())
    }
}

/// Opens the first GPU.
fn open_gpu() -> std::result::Result<CudaDevice, GpuProblem> {
    let device = CudaDevice::new(0).map_err(|error| GpuProblem {
        has_gpu: !matches!(error, CudaError::NoDriver | CudaError::NoDevice { .. }),
        reason: error.to_string(),
    })?;
    let checked = Device::check_cuda(device.context());
    checked.map_err(|error| GpuProblem { has_gpu: true, reason: error.to_string() })?;
    Ok(device)
}

/// A device whose pool does not exist yet.
pub(super) enum OpenedDevice {
    Host(HostDevice),
    Cuda(Box<CudaDevice>),
}

impl OpenedDevice {
    /// Opens the device of `--device`. With `auto`, opens the host if no GPU can be used.
    pub(super) fn open(argument: DeviceArgument) -> Result<Self> {
        if argument != DeviceArgument::Host {
            match open_gpu() {
                Ok(device) => return Ok(Self::Cuda(Box::new(device))),
                Err(problem) => problem.fall_back_to_host(argument)?,
            }
        }
        Ok(Self::Host(HostDevice::new(CAPACITY_BYTES)))
    }

    /// Returns the kind of device, which determines the sizes of programs.
    pub(super) fn kind(&self) -> DeviceKind {
        match self {
            Self::Host(_) => DeviceKind::Host,
            Self::Cuda(_) => DeviceKind::Cuda,
        }
    }

    /// Returns the description of the device.
    fn info(&self) -> DeviceInfo {
        let info = match self {
            Self::Host(device) => device.info(),
            Self::Cuda(device) => device.info(),
        };
        DeviceInfo { device: DEVICE.0, ..info }
    }

    /// Creates the pool, recorded by the recorder of `handle`.
    fn into_pool(self, settings: Settings, handle: &RecorderHandle) -> RecordedPool {
        match self {
            Self::Host(device) => RecordedPool::Host(HostPool::recorded(device, settings, handle)),
            Self::Cuda(device) => {
                let context = Arc::clone(device.context());
                RecordedPool::Cuda(CudaPool::recorded(*device, settings, handle), context)
            }
        }
    }
}

/// A recorded pool.
enum RecordedPool {
    Host(HostPool),
    Cuda(CudaPool, Arc<CudaContext>),
}

/// A demo that is being recorded.
pub(super) struct Recording {
    recorder: Recorder,
    pub(super) handle: RecorderHandle,
    pool: RecordedPool,
}

impl Recording {
    /// Creates a pool with `settings` on `device` and starts to record it to `outputs`. `source` is
    /// the program's name in the recording.
    pub(super) fn start(device: OpenedDevice, settings: Settings, source: &str, outputs: Outputs) -> Result<Self> {
        let info = RecordingInfo {
            source: source.to_owned(),
            writer: concat!("vramscope ", env!("CARGO_PKG_VERSION")).to_owned(),
            alloc_conf: settings.to_conf(),
            devices: vec![device.info()],
            ..RecordingInfo::default()
        };
        let recorder = Recorder::start(info, outputs);
        let (recorder, handle) =
            recorder.map_err(|error| CommandError::new(format_args!("cannot start the recorder: {error}")))?;
        let pool = device.into_pool(settings, &handle);
        Ok(Self { recorder, handle, pool })
    }

    /// Offers the page's command that empties the cache.
    pub(super) fn offer_empty_cache(&self, controls: &Controls) {
        match &self.pool {
            RecordedPool::Host(pool) => controls.offer_empty_cache_of(pool),
            RecordedPool::Cuda(pool, _) => controls.offer_empty_cache_of(pool),
        }
    }

    /// Creates the device of the default demo.
    pub(super) fn device(&self) -> Result<Device> {
        let device = match &self.pool {
            RecordedPool::Host(pool) => Device::host(pool.clone()),
            RecordedPool::Cuda(pool, context) => Device::cuda(Box::new(pool.clone()), context),
        };
        device.map_err(CommandError::new)
    }

    /// Creates the device of a technique's program.
    pub(super) fn device_of(&self, plan: &Plan) -> std::result::Result<Device, TechniqueError> {
        match &self.pool {
            RecordedPool::Host(pool) => plan.host_device(pool.clone(), CAPACITY_BYTES),
            RecordedPool::Cuda(pool, context) => plan.cuda_device(pool.clone(), context),
        }
    }

    /// Ends the recording.
    pub(super) fn stop(self) -> Summary {
        self.recorder.stop()
    }
}

/// Returns the outputs of a recording: `hub`, which feeds the page, and the file at `path`, which
/// is created.
pub(super) fn outputs(arguments: &DemoArguments, path: Option<&Path>, hub: Option<Hub>) -> Result<Outputs> {
    let overflow = match arguments.overflow {
        Some(OverflowArgument::Wait) => Overflow::Wait,
        Some(OverflowArgument::Drop) => Overflow::Drop,
        None if path.is_some() || hub.is_none() => Overflow::Wait,
        None => Overflow::Drop,
    };
    let mut outputs = Outputs { hub, overflow, redact: redact_from_env(), ..Outputs::default() };
    if let Some(path) = path {
        outputs.file = Some(arguments.retention.create(path)?);
        outputs.on_file_error = Some(Box::new(|error| {
            terminal::message(format_args!("{error}; the file ends here, the live view continues"));
        }));
    }
    Ok(outputs)
}

/// Prints the size of the file at `path` that a recording was written to.
pub(super) fn print_file(path: Option<&Path>, summary: &Summary) {
    if let Some(path) = path.filter(|_| summary.file_error.is_none()) {
        let events = Count(summary.events).of("event", "events");
        terminal::message(format_args!("{}: {events}, {}", path.display(), ByteSize(summary.bytes)));
    }
}

/// Returns the error that ended a recording's file early, if any.
pub(super) fn file_result(summary: &Summary) -> Result {
    match &summary.file_error {
        Some(FileError { name, error }) => {
            Err(CommandError::new(format_args!("{name}: the recording is incomplete: {error}")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_auto_falls_back_to_the_host() {
        for has_gpu in [false, true] {
            let problem = || GpuProblem { reason: "NVRTC: libnvrtc.so cannot be loaded".to_owned(), has_gpu };
            assert!(problem().fall_back_to_host(DeviceArgument::Auto).is_ok());
            let error = problem().fall_back_to_host(DeviceArgument::Cuda).expect_err("the GPU must be used");
            let message = "--device cuda: NVRTC: libnvrtc.so cannot be loaded, or use --device host";
            assert_eq!(error.to_string(), message);
        }
    }
}
