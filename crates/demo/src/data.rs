//! Data sets of labelled images of digits, and batches of them.

use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use vramscope_collector::{Category, Scope};

use crate::device::Device;
use crate::digits::{self, CLASSES, PIXELS};
use crate::dtype::DType;
use crate::error::Result;
use crate::operation::Operation;
use crate::tensor::Tensor;

/// Maximum number of images in a shard, a part of a data set with its own tensors.
const SHARD_LEN: usize = 2048;

/// Up to [`SHARD_LEN`] images of a data set.
struct Shard {
    /// `[images, PIXELS]`, from 0 to 1; in `f16`, which is precise enough for 256 grey levels.
    pixels: Tensor,
    labels: Vec<u32>,
}

/// A data set of images of digits, on the device, and their labels.
pub(crate) struct Dataset {
    shards: Vec<Shard>,
}

/// The images `[images, PIXELS]` and labels of one step.
pub(crate) struct Batch {
    pub(crate) pixels: Tensor,
    pub(crate) labels: Tensor,
}

impl Dataset {
    /// Generates a data set of `len` images of random digits, allocated in the scope `name`. If
    /// `stop` becomes true, generates no more shards, so that the data set has fewer images.
    pub(crate) fn generate(device: &Device, name: &str, len: usize, rng: &mut Rng, stop: &AtomicBool) -> Result<Self> {
        let _scope = Scope::open_with(name, Category::Input);
        let mut shards = Vec::new();
        let mut image = [0; PIXELS];
        for start in (0..len).step_by(SHARD_LEN) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let count = SHARD_LEN.min(len - start);
            let (mut bytes, mut labels) = (Vec::with_capacity(count * PIXELS * 2), Vec::with_capacity(count));
            for _ in 0..count {
                let digit = rng.usize(..CLASSES);
                digits::draw(digit, rng, &mut image);
                labels.push(digit as u32);
                let values = image.iter().map(|&pixel| half::f16::from_f32(f32::from(pixel) / 255.0));
                bytes.extend(values.flat_map(half::f16::to_le_bytes));
            }
            shards.push(Shard { pixels: Tensor::from_bytes(device, &[count, PIXELS], DType::F16, &bytes)?, labels });
        }
        Ok(Self { shards })
    }

    /// Returns the number of images.
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.labels.len()).sum()
    }

    /// Copies `len` random images of a random shard to a new batch.
    pub(crate) fn random_batch(&self, len: usize, rng: &mut Rng) -> Result<Batch> {
        let shard = &self.shards[rng.usize(..self.shards.len())];
        let indices: Vec<u32> = (0..len).map(|_| rng.u32(..shard.labels.len() as u32)).collect();
        shard.batch(&indices)
    }

    /// Returns the images in batches of up to `len`, in order.
    pub(crate) fn batches(&self, len: usize) -> impl Iterator<Item = Result<Batch>> {
        self.shards.iter().flat_map(move |shard| {
            let count = shard.labels.len() as u32;
            (0..count).step_by(len).map(move |start| {
                let indices: Vec<u32> = (start..count.min(start + len as u32)).collect();
                shard.batch(&indices)
            })
        })
    }
}

impl Shard {
    /// Copies the images with these indices to a new batch.
    fn batch(&self, indices: &[u32]) -> Result<Batch> {
        let _scope = Scope::open_with("batch", Category::Input);
        let _operation = Operation::enter("gather");
        let device = self.pixels.device();
        let labels: Vec<u32> = indices.iter().map(|&index| self.labels[index as usize]).collect();
        let labels = Tensor::from_u32(device, &[indices.len()], &labels)?;
        let indices = Tensor::from_u32(device, &[indices.len()], indices)?;
        let pixels = Tensor::empty(device, &[indices.len(), PIXELS], DType::F32)?;
        device.kernels().gather_rows(self.pixels.raw(), indices.raw(), pixels.raw())?;
        Ok(Batch { pixels, labels })
    }
}
