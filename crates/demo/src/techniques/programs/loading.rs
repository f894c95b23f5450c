//! A program that trains a two-layer network to reproduce its input, with one of several loaders.

use std::fs::File;

use fastrand::Rng;
use memmap2::Mmap;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize_to_file};
use tempfile::NamedTempFile;
use vramscope_collector::{Category, Scope};

use super::super::report::Figure;
use super::super::run::{ProgramState, Run};
use super::super::settings::{Loading, Settings};
use crate::backend::{BackendError, StagingBuffer};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::random::normal;
use crate::tensor::Tensor;

/// Index of the stream on which batches are copied in advance.
const COPY: usize = 1;

/// Generates the batch of step `step`, as the bytes of its elements.
fn batch_bytes(settings: &Settings, step: u64) -> Vec<u8> {
    let mut rng = Rng::with_seed(settings.seed ^ (step << 20));
    let numbers = (0..settings.rows * settings.row_width).map(|_| normal(&mut rng, 1.0));
    numbers.flat_map(f32::to_le_bytes).collect()
}

/// Maximum number of batches that a loader keeps in host memory. Longer runs repeat them.
const HOST_BATCHES: u64 = 8;

/// Generates the first `count` batches, as bytes.
fn batches(settings: &Settings, count: u64) -> Vec<Vec<u8>> {
    (0..count).map(|step| batch_bytes(settings, step)).collect()
}

/// Generates the batches that a loader keeps in host memory, as bytes.
fn host_batches(settings: &Settings) -> Vec<Vec<u8>> {
    batches(settings, settings.steps.min(HOST_BATCHES))
}

/// Returns the batch of a step from `batches`, which repeat.
fn host_batch(batches: &[Vec<u8>], step: u64) -> &[u8] {
    &batches[step as usize % batches.len()]
}

/// Copies a batch to the device.
fn upload(device: &Device, settings: &Settings, bytes: &[u8]) -> Result<Tensor> {
    let _scope = Scope::open_with("data", Category::Input);
    Tensor::from_bytes(device, &[settings.rows, settings.row_width], DType::F32, bytes)
}

/// The source of batches.
enum Loader {
    /// All batches, on the device.
    Eager(Vec<Tensor>),
    /// Each batch is generated when it is needed.
    Generator,
    /// The bytes of the batches, in ordinary host memory.
    Host(Vec<Vec<u8>>),
    /// A safetensors file with all batches, mapped into memory. The system reads only pages that
    /// are used.
    Lazy(MappedFile),
    /// The bytes of the batches, two staging buffers, and the batch that was copied in advance.
    Staged { batches: Vec<Vec<u8>>, buffers: Vec<Box<dyn StagingBuffer>>, next: Option<Tensor> },
}

/// A memory-mapped temporary file, deleted when `self` is dropped.
struct MappedFile {
    map: Mmap,
    _file: NamedTempFile,
}

/// Returns the error of a failed use of the data file.
fn file_error(error: impl std::error::Error) -> BackendError {
    BackendError { call: "safetensors file".to_owned(), reason: error.to_string() }
}

impl MappedFile {
    /// Writes all batches to a temporary file and maps it.
    fn write(settings: &Settings) -> Result<Self> {
        let batches = batches(settings, settings.steps);
        let shape = vec![settings.rows, settings.row_width];
        let view = |bytes| TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(file_error);
        let views = batches.iter().enumerate().map(|(step, bytes)| Ok((format!("batch{step}"), view(bytes)?)));
        let views: Vec<_> = views.collect::<Result<_, BackendError>>()?;
        let file = NamedTempFile::new().map_err(file_error)?;
        serialize_to_file(views, None, file.path()).map_err(file_error)?;
        let opened = File::open(file.path()).map_err(file_error)?;
        // SAFETY: The file is new and has a random name; this process alone writes it, and has
        // finished.
        let map = unsafe { Mmap::map(&opened) }.map_err(file_error)?;
        Ok(Self { map, _file: file })
    }

    /// Copies the batch of step `step` to the device.
    fn batch(&self, device: &Device, settings: &Settings, step: u64) -> Result<Tensor> {
        let file = SafeTensors::deserialize(&self.map).map_err(file_error)?;
        let view = file.tensor(&format!("batch{step}")).map_err(file_error)?;
        upload(device, settings, view.data())
    }
}

impl Loader {
    fn new(device: &Device, settings: &Settings) -> Result<Self> {
        Ok(match settings.loading {
            Loading::Eager => {
                let all = (0..settings.steps).map(|step| upload(device, settings, &batch_bytes(settings, step)));
                Self::Eager(all.collect::<Result<_>>()?)
            }
            Loading::Generator => Self::Generator,
            Loading::Host => Self::Host(host_batches(settings)),
            Loading::Lazy => Self::Lazy(MappedFile::write(settings)?),
            Loading::PinnedStaging => {
                let bytes = settings.rows * settings.row_width * 4;
                let buffers = (0..2).map(|_| device.backend().staging_buffer(bytes)).collect::<Result<_, _>>()?;
                let mut loader = Self::Staged { batches: host_batches(settings), buffers, next: None };
                loader.prefetch(device, settings, 0)?;
                loader
            }
        })
    }

    /// Returns the batch of step `step` on the device.
    fn batch(&mut self, device: &Device, settings: &Settings, step: u64) -> Result<Tensor> {
        match self {
            Self::Eager(all) => Ok(all[step as usize].clone()),
            Self::Generator => upload(device, settings, &batch_bytes(settings, step)),
            Self::Host(batches) => upload(device, settings, host_batch(batches, step)),
            Self::Lazy(file) => file.batch(device, settings, step),
            Self::Staged { next, .. } => {
                let batch = next.take().expect("prefetch() was called for this step");
                device.wait_stream(0, COPY)?;
                // It was allocated on the copy stream and is used on the default stream.
                batch.record_stream(0)?;
                Ok(batch)
            }
        }
    }

    /// Begins to copy the batch of step `step`, if this loader copies in advance.
    fn prefetch(&mut self, device: &Device, settings: &Settings, step: u64) -> Result {
        let Self::Staged { batches, buffers, next } = self else { return Ok(()) };
        if step == settings.steps {
            return Ok(());
        }
        let buffer = &mut buffers[step as usize % 2];
        buffer.bytes_mut()?.copy_from_slice(host_batch(batches, step));
        let _scope = Scope::open_with("data", Category::Input);
        *next = Some(device.with_stream(COPY, || {
            let staged = Tensor::empty(device, &[settings.rows, settings.row_width], DType::F32)?;
            device.backend().upload_staged(&**buffer, staged.raw())?;
            Ok(staged)
        })?);
        Ok(())
    }
}

/// Trains the network with the loader that the settings choose.
pub(in super::super) fn run(run: &mut Run<'_>) -> Result<ProgramState> {
    let (device, settings) = (run.device, run.settings);
    let mut loader = Loader::new(device, settings)?;
    let model = settings.perceptron(device)?;
    let mut trainer = settings.trainer(device, model.parameters())?;
    run.each_step(|step| {
        let batch = loader.batch(device, settings, step)?;
        let losses = trainer.step(|_| {
            let error = model.forward(&batch)?.subtract(&batch)?;
            error.multiply(&error)?.mean()
        })?;
        // The device still computes this step while the next batch is copied.
        loader.prefetch(device, settings, step + 1)?;
        losses[0].item()
    })?;
    let batch = (settings.rows * settings.row_width * 4) as u64;
    run.bytes("batch_bytes", batch);
    run.bytes("data_bytes", batch * settings.steps);
    run.optimizers([&trainer]);
    run.figure("two_streams", Figure::Count(u64::from(settings.loading == Loading::PinnedStaging)));
    Ok(Box::new((loader, model, trainer)))
}
