//! Data sets of labelled images in the pool, and batches of them.

use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use vramscope_collector::{AllocateError, HostPool, PoolSlice};
use vramscope_trace::Category;

use crate::digits::{self, CLASSES, PIXELS};

/// Maximum number of images in a shard, a part of a data set with its own buffers. A data set with
/// more images has several shards.
const SHARD_LEN: usize = 2048;

/// Up to [`SHARD_LEN`] images of a data set: one buffer of the pool with their pixels, one with
/// their labels.
struct Shard {
    pixels: PoolSlice<u8>,
    labels: PoolSlice<u8>,
}

/// A data set of images of digits and their labels, in buffers of the pool.
pub(crate) struct Dataset {
    shards: Vec<Shard>,
    len: usize,
}

/// The images, with pixels from 0 to 1, and the labels for one pass through the network.
pub(crate) struct Batch {
    pub(crate) pixels: PoolSlice<f32>,
    pub(crate) labels: Vec<u8>,
}

impl Dataset {
    /// Generates a data set of `len` images of random digits, allocated in the scope `name`. Once
    /// `stop` is true, generates no more shards, so that the data set has fewer images.
    pub(crate) fn generate(
        pool: &HostPool,
        name: &str,
        len: usize,
        rng: &mut Rng,
        stop: &AtomicBool,
    ) -> Result<Self, AllocateError> {
        let _scope = pool.scope_with(name, Category::Input);
        let mut shards = Vec::new();
        for start in (0..len).step_by(SHARD_LEN) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let count = SHARD_LEN.min(len - start);
            let mut shard = Shard { pixels: pool.alloc_zeros(count * PIXELS)?, labels: pool.alloc_zeros(count)? };
            for (pixels, label) in shard.pixels.chunks_exact_mut(PIXELS).zip(shard.labels.iter_mut()) {
                let digit = rng.usize(..CLASSES);
                digits::draw(digit, rng, pixels);
                *label = digit as u8;
            }
            shards.push(shard);
        }
        let len = shards.iter().map(|shard| shard.labels.len()).sum();
        Ok(Self { shards, len })
    }

    /// Returns the number of images in the data set.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies the images with these indices in the data set, and their labels, to a new batch.
    pub(crate) fn batch(
        &self,
        pool: &HostPool,
        indices: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Batch, AllocateError> {
        let _scope = pool.scope_with("batch", Category::Input);
        let mut pixels = pool.alloc_zeros::<f32>(indices.len() * PIXELS)?;
        let mut labels = Vec::with_capacity(indices.len());
        for (values, index) in pixels.chunks_exact_mut(PIXELS).zip(indices) {
            let (shard, index) = (&self.shards[index / SHARD_LEN], index % SHARD_LEN);
            let bytes = &shard.pixels[index * PIXELS..][..PIXELS];
            values.iter_mut().zip(bytes).for_each(|(value, &pixel)| *value = f32::from(pixel) / 255.0);
            labels.push(shard.labels[index]);
        }
        Ok(Batch { pixels, labels })
    }
}
