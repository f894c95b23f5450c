//! A GPT: a decoder-only transformer with plain softmax attention.
//!
//! Layer norms come before attention and MLP, and positions are learned. The MLP has GELU and four
//! times the model's width. The head does not share the weight of the token embedding. There is no
//! dropout, so that runs can be repeated.

use std::rc::Rc;

use crate::autograd::checkpoint;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, arguments};
use crate::modules::{Embedding, Initializer, LayerNorm, Linear, Parameter, prefixed};
use crate::operation::Module;
use crate::tensor::Tensor;

/// Standard deviation of initial weights, as in GPT-2.
const DEVIATION: f32 = 0.02;

/// The sizes of a [`Gpt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptConfig {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Width of the residual stream; a multiple of `heads`.
    pub width: usize,
    /// Number of attention heads.
    pub heads: usize,
    /// Maximum number of tokens of a sequence.
    pub length: usize,
}

/// The parts of the model that a backward pass computes again (activation checkpointing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Nothing.
    #[default]
    Nothing,
    /// Each block: only the block's input is kept.
    Blocks,
    /// Attention and MLP of each block: their inputs are kept.
    Layers,
}

/// The attention of a block, with the norm before it.
struct Attention {
    norm: LayerNorm,
    qkv: Linear,
    project: Linear,
    heads: usize,
}

impl Attention {
    /// Computes the attention's contribution to the residual stream `x` `[sequences, length,
    /// width]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _module = Module::enter("attention");
        let normed = self.norm.forward(x)?;
        let projected = self.qkv.forward(&normed)?;
        drop(normed);
        let [queries, keys, values] = projected.split_heads::<3>(self.heads)?;
        drop(projected);
        let scores = queries.matmul(&keys, true)?;
        let weights = scores.causal_softmax(self.scale(&queries), 0)?;
        drop((queries, keys, scores));
        let mixed = weights.matmul(&values, false)?;
        drop((weights, values));
        self.project.forward(&mixed.merge_heads(self.heads)?)
    }

    /// Returns the factor of attention scores: 1 / sqrt(width of a head).
    fn scale(&self, queries: &Tensor) -> f32 {
        1.0 / (queries.columns() as f32).sqrt()
    }

    /// Computes the attention of the new tokens `x` to all tokens so far. `cache` has the keys and
    /// values of the `used` earlier tokens, and receives keys and values of new ones.
    fn forward_cached(&self, x: &Tensor, cache: &LayerCache, used: usize) -> Result<Tensor> {
        let _module = Module::enter("attention");
        let normed = self.norm.forward(x)?;
        let [queries, keys, values] = self.qkv.forward(&normed)?.split_heads::<3>(self.heads)?;
        cache.keys.append_rows(&keys, used)?;
        cache.values.append_rows(&values, used)?;
        let all = used + keys.shape()[1];
        let scores = queries.scores_of_cached(&cache.keys, all)?;
        let weights = scores.causal_softmax(self.scale(&queries), used)?;
        drop(scores);
        self.project.forward(&weights.sum_of_cached(&cache.values, all)?.merge_heads(self.heads)?)
    }
}

/// The MLP of a block, with the norm before it.
struct Mlp {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Mlp {
    /// Computes the MLP's contribution to the residual stream `x`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _module = Module::enter("mlp");
        let normed = self.norm.forward(x)?;
        let wide = self.up.forward(&normed)?;
        drop(normed);
        let active = wide.gelu()?;
        drop(wide);
        self.down.forward(&active)
    }
}

/// A transformer block: attention and MLP, each added to the residual stream.
struct Block {
    attention: Rc<Attention>,
    mlp: Rc<Mlp>,
}

impl Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.add(&self.attention.forward(x)?)?;
        x.add(&self.mlp.forward(&x)?)
    }

    /// Computes the block, keeping only the inputs of attention and MLP for the backward pass.
    fn forward_checkpointed(&self, x: &Tensor) -> Result<Tensor> {
        let (attention, mlp) = (Rc::clone(&self.attention), Rc::clone(&self.mlp));
        let x = x.add(&checkpoint(x, move |x| attention.forward(x))?)?;
        x.add(&checkpoint(&x, move |x| mlp.forward(x))?)
    }
}

/// The cached keys and values of one block, for all tokens so far.
struct LayerCache {
    keys: Tensor,
    values: Tensor,
}

/// A cache of the keys and values of all tokens so far, so that generating a token does not compute
/// them again.
pub struct KeyValueCache {
    layers: Vec<LayerCache>,
    used: usize,
}

impl KeyValueCache {
    /// Returns the size of the cache in bytes, used or not.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.keys.bytes() + layer.values.bytes()).sum()
    }
}

/// Returns the size of all parameters together, in bytes.
fn total_bytes(parameters: &[Parameter]) -> usize {
    parameters.iter().map(|parameter| parameter.value.bytes()).sum()
}

/// A decoder-only transformer with its parameters.
pub struct Gpt {
    config: GptConfig,
    tokens: Embedding,
    positions: Embedding,
    blocks: Vec<(String, Rc<Block>)>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    /// Creates a GPT with random parameters from `seed`.
    ///
    /// # Errors
    /// If the width is not a multiple of the heads, or the parameters cannot be allocated.
    pub fn new(device: &Device, config: GptConfig, seed: u64) -> Result<Self> {
        let GptConfig { vocabulary, layers, width, heads, length } = config;
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(arguments("gpt", format!("the width {width} is not a multiple of the {heads} heads")));
        }
        let _module = Module::enter("gpt");
        let mut initializer = Initializer::new(device, seed);
        let tokens = Embedding::new(&mut initializer, "tokens", [vocabulary, width], DEVIATION)?;
        let positions = Embedding::new(&mut initializer, "positions", [length, width], DEVIATION)?;
        // Scaled as in GPT-2, so that the residual stream does not grow with the number of blocks.
        let into_residual = DEVIATION / (2.0 * layers as f32).sqrt();
        let mut block = |index: usize| {
            let name = format!("block{index}");
            let _module = Module::enter(&name);
            let initializer = &mut initializer;
            let attention = {
                let _module = Module::enter("attention");
                Attention {
                    norm: LayerNorm::new(initializer, "norm", width)?,
                    qkv: Linear::new(initializer, "qkv", [width, 3 * width], true, DEVIATION)?,
                    project: Linear::new(initializer, "project", [width, width], true, into_residual)?,
                    heads,
                }
            };
            let mlp = {
                let _module = Module::enter("mlp");
                Mlp {
                    norm: LayerNorm::new(initializer, "norm", width)?,
                    up: Linear::new(initializer, "up", [width, 4 * width], true, DEVIATION)?,
                    down: Linear::new(initializer, "down", [4 * width, width], true, into_residual)?,
                }
            };
            Result::Ok((name, Rc::new(Block { attention: Rc::new(attention), mlp: Rc::new(mlp) })))
        };
        let blocks = (0..layers).map(&mut block).collect::<Result<_>>()?;
        let norm = LayerNorm::new(&mut initializer, "norm", width)?;
        let head = Linear::new(&mut initializer, "head", [width, vocabulary], false, DEVIATION)?;
        Ok(Self { config, tokens, positions, blocks, norm, head })
    }

    /// Returns the sizes of the model.
    #[must_use]
    pub fn config(&self) -> GptConfig {
        self.config
    }

    /// Computes the logits `[sequences, length, vocabulary]` of the token after each of `tokens`
    /// (`u32`, `[sequences, length]`).
    ///
    /// # Errors
    /// If the sequences are too long, or memory or kernels fail.
    pub fn forward(&self, tokens: &Tensor, recompute: Recompute) -> Result<Tensor> {
        let _module = Module::enter("gpt");
        let mut x = self.embed(tokens, 0)?;
        for (name, block) in &self.blocks {
            let _module = Module::enter(name);
            x = match recompute {
                Recompute::Nothing => block.forward(&x)?,
                Recompute::Layers => block.forward_checkpointed(&x)?,
                Recompute::Blocks => {
                    let block = Rc::clone(block);
                    checkpoint(&x, move |x| block.forward(x))?
                }
            };
        }
        let normed = self.norm.forward(&x)?;
        drop(x);
        self.head.forward(&normed)
    }

    /// Adds the embeddings of tokens and of their positions, which begin at `first`.
    fn embed(&self, tokens: &Tensor, first: usize) -> Result<Tensor> {
        let &[sequences, length] = tokens.shape() else {
            let reason = format!("tokens of the shape {:?} instead of [sequences, length]", tokens.shape());
            return Err(arguments("gpt", reason));
        };
        let end = first + length;
        if end > self.config.length {
            let reason = format!("a sequence of {end} tokens is longer than the model's {}", self.config.length);
            return Err(arguments("gpt", reason));
        }
        let positions: Vec<u32> = (0..sequences).flat_map(|_| first as u32..end as u32).collect();
        let positions = Tensor::from_u32(tokens.device(), &[sequences, length], &positions)?;
        self.tokens.forward(tokens)?.add(&self.positions.forward(&positions)?)
    }

    /// Allocates an empty cache of keys and values for `sequences` sequences of up to `length`
    /// tokens.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn cache(&self, device: &Device, sequences: usize, length: usize) -> Result<KeyValueCache> {
        let GptConfig { width, heads, .. } = self.config;
        let layer = |_: &_| {
            let empty = || Tensor::zeros(device, &[sequences * heads, length, width / heads], DType::F32);
            Ok(LayerCache { keys: empty()?, values: empty()? })
        };
        Ok(KeyValueCache { layers: self.blocks.iter().map(layer).collect::<Result<_>>()?, used: 0 })
    }

    /// Computes the logits `[sequences, length, vocabulary]` of the token after each of `tokens`
    /// (`u32`, `[sequences, length]`), for inference. The tokens continue the sequences in `cache`,
    /// which receives their keys and values.
    ///
    /// # Errors
    /// If the cache is too short or has another number of sequences, or memory or kernels fail.
    pub fn forward_cached(&self, tokens: &Tensor, cache: &mut KeyValueCache) -> Result<Tensor> {
        let _module = Module::enter("gpt");
        let mut x = self.embed(tokens, cache.used)?;
        for ((name, block), layer) in self.blocks.iter().zip(&cache.layers) {
            let _module = Module::enter(name);
            x = x.add(&block.attention.forward_cached(&x, layer, cache.used)?)?;
            x = x.add(&block.mlp.forward(&x)?)?;
        }
        cache.used += tokens.columns();
        self.head.forward(&self.norm.forward(&x)?)
    }

    /// Replaces the weights of all linear layers by 8-bit integers, for inference: each layer
    /// widens its weight when it runs.
    ///
    /// # Errors
    /// If memory or kernels fail.
    ///
    /// # Panics
    /// If a gradient graph still refers to the model.
    pub fn quantize(&mut self) -> Result {
        let _module = Module::enter("gpt");
        for (name, block) in &mut self.blocks {
            let _module = Module::enter(name);
            let Block { attention, mlp } = Rc::get_mut(block).expect("no graph refers to the model");
            {
                let _module = Module::enter("attention");
                let attention = Rc::get_mut(attention).expect("no graph refers to the model");
                attention.qkv.quantize()?;
                attention.project.quantize()?;
            }
            let _module = Module::enter("mlp");
            let mlp = Rc::get_mut(mlp).expect("no graph refers to the model");
            mlp.up.quantize()?;
            mlp.down.quantize()?;
        }
        self.head.quantize()
    }

    /// Returns the size of all parameters as stored, in bytes, with the scales of quantized ones.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        let block = |(_, block): &(String, Rc<Block>)| {
            let Block { attention, mlp } = &**block;
            let linear = [&attention.qkv, &attention.project, &mlp.up, &mlp.down].map(Linear::bytes);
            let norms = [&attention.norm, &mlp.norm].map(LayerNorm::parameters);
            linear.into_iter().sum::<usize>() + norms.iter().map(|norm| total_bytes(norm)).sum::<usize>()
        };
        let rest = [self.tokens.parameters(), self.positions.parameters(), self.norm.parameters()];
        let rest = rest.iter().map(|parameters| total_bytes(parameters)).sum::<usize>();
        self.blocks.iter().map(block).sum::<usize>() + rest + self.head.bytes()
    }

    /// Returns the trainable parameters, in a fixed order: all except quantized weights.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all: Vec<Parameter> = prefixed("tokens", self.tokens.parameters());
        all.extend(prefixed("positions", self.positions.parameters()));
        for (index, (_, block)) in self.blocks.iter().enumerate() {
            let Block { attention, mlp } = &**block;
            let layers = [
                ("norm1", attention.norm.parameters()),
                ("qkv", attention.qkv.parameters()),
                ("project", attention.project.parameters()),
                ("norm2", mlp.norm.parameters()),
                ("up", mlp.up.parameters()),
                ("down", mlp.down.parameters()),
            ];
            for (name, parameters) in layers {
                all.extend(prefixed(&format!("blocks.{index}.{name}"), parameters));
            }
        }
        all.extend(prefixed("norm", self.norm.parameters()));
        all.extend(prefixed("head", self.head.parameters()));
        all
    }
}
