//! A synthetic text that a small GPT learns quickly: a Markov chain generated from a seed.

use fastrand::Rng;
use vramscope_collector::{Category, Scope};

use crate::device::Device;
use crate::error::Result;
use crate::tensor::Tensor;

/// Number of tokens that can follow each token.
const SUCCESSORS: usize = 4;

/// A generator of a text in which each token has four possible successors, of which the first is
/// the most likely.
#[derive(Debug)]
pub struct Text {
    /// The possible successors of each token.
    successors: Vec<[u32; SUCCESSORS]>,
    seed: u64,
}

/// Sequences of tokens and their successors, on a device.
#[derive(Debug)]
pub struct TokenBatch {
    /// Tokens (`u32`), `[sequences, length]`.
    pub inputs: Tensor,
    /// The successor of each token, `[sequences, length]`.
    pub targets: Tensor,
}

impl Text {
    /// Creates a generator of a text of `vocabulary` different tokens.
    ///
    /// # Panics
    /// If `vocabulary` is 0 or does not fit into a `u32`.
    #[must_use]
    pub fn new(vocabulary: usize, seed: u64) -> Self {
        let tokens = u32::try_from(vocabulary).expect("the vocabulary fits into a u32");
        let mut rng = Rng::with_seed(seed);
        let successors = (0..vocabulary).map(|_| std::array::from_fn(|_| rng.u32(..tokens))).collect();
        Self { successors, seed }
    }

    /// Returns `sequences` sequences of `length` tokens, one after the other. Equal arguments give
    /// equal tokens.
    #[must_use]
    pub fn sequences(&self, sequences: usize, length: usize, step: u64) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(sequences * length);
        for sequence in 0..sequences {
            // Each sequence has its own generator, so that a sequence does not depend on how many
            // sequences the batch has.
            let mut rng = Rng::with_seed(self.seed ^ (step << 20) ^ sequence as u64);
            let mut token = rng.usize(..self.successors.len());
            for _ in 0..length {
                tokens.push(token as u32);
                // Of 8 draws, 5 take the first successor, and one each of the others.
                let choice = rng.usize(..8).saturating_sub(8 - SUCCESSORS);
                token = self.successors[token][choice] as usize;
            }
        }
        tokens
    }

    /// Copies the batch of step `step` to `device`: `sequences` sequences of `length` tokens.
    ///
    /// # Errors
    /// If the memory cannot be allocated or written.
    #[track_caller]
    pub fn batch(&self, device: &Device, sequences: usize, length: usize, step: u64) -> Result<TokenBatch> {
        let _scope = Scope::open_with("data", Category::Input);
        let text = self.sequences(sequences, length + 1, step);
        let part = |from: usize| -> Vec<u32> {
            text.chunks_exact(length + 1).flat_map(|sequence| &sequence[from..from + length]).copied().collect()
        };
        let shape = [sequences, length];
        let (inputs, targets) = (part(0), part(1));
        Ok(TokenBatch {
            inputs: Tensor::from_u32(device, &shape, &inputs)?,
            targets: Tensor::from_u32(device, &shape, &targets)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_reproducible_and_mostly_predictable() {
        let text = Text::new(64, 7);
        let tokens = text.sequences(4, 500, 3);
        assert_eq!(tokens, Text::new(64, 7).sequences(4, 500, 3));
        assert_ne!(tokens, text.sequences(4, 500, 4));
        assert_eq!(tokens[..500], text.sequences(1, 500, 3), "a sequence does not depend on the batch");
        let is_likely = |pair: &&[u32]| text.successors[pair[0] as usize][0] == pair[1];
        let likely = tokens[..500].windows(2).filter(is_likely).count();
        assert!((250..400).contains(&likely), "{likely} of 499");
    }
}
