//! The digits to learn from, kept in the pool, and batches of them.

use std::sync::atomic::{AtomicBool, Ordering};

use vramscope_collector::{AllocateError, HostPool, PoolSlice};
use vramscope_trace::Category;

use crate::digits::{self, CLASSES, PIXELS};
use crate::random::Random;

/// Digits in one buffer of the pool.
const SHARD_LEN: usize = 2048;

struct Shard {
    pixels: PoolSlice<u8>,
    labels: PoolSlice<u8>,
}

/// Digits with their labels.
pub(crate) struct Dataset {
    shards: Vec<Shard>,
    len: usize,
}

/// Some of them, as a network takes them.
pub(crate) struct Batch {
    pub(crate) pixels: PoolSlice<f32>,
    pub(crate) labels: Vec<u8>,
}

impl Dataset {
    /// Draws `len` digits, or fewer if it is told to stop.
    pub(crate) fn draw(
        pool: &HostPool,
        name: &str,
        len: usize,
        random: &mut Random,
        stop: &AtomicBool,
    ) -> Result<Self, AllocateError> {
        let _data = pool.scope_with(name, Category::Input);
        let mut shards = Vec::new();
        for begin in (0..len).step_by(SHARD_LEN) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let count = SHARD_LEN.min(len - begin);
            let mut shard = Shard { pixels: pool.alloc_zeros(count * PIXELS)?, labels: pool.alloc_zeros(count)? };
            for (pixels, label) in shard.pixels.chunks_exact_mut(PIXELS).zip(shard.labels.iter_mut()) {
                let digit = random.below(CLASSES);
                digits::draw(digit, random, pixels);
                *label = digit as u8;
            }
            shards.push(shard);
        }
        let len = shards.iter().map(|shard| shard.labels.len()).sum();
        Ok(Self { shards, len })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The digits with these numbers.
    pub(crate) fn batch(
        &self,
        pool: &HostPool,
        numbers: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Batch, AllocateError> {
        let _data = pool.scope_with("batch", Category::Input);
        let mut pixels = pool.alloc_zeros::<f32>(numbers.len() * PIXELS)?;
        let mut labels = Vec::with_capacity(numbers.len());
        for (place, number) in pixels.chunks_exact_mut(PIXELS).zip(numbers) {
            let (shard, number) = (&self.shards[number / SHARD_LEN], number % SHARD_LEN);
            let drawn = &shard.pixels[number * PIXELS..][..PIXELS];
            place.iter_mut().zip(drawn).for_each(|(value, &pixel)| *value = f32::from(pixel) / 255.0);
            labels.push(shard.labels[number]);
        }
        Ok(Batch { pixels, labels })
    }
}
