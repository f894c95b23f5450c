//! The settings of a program: its sizes, and the switches that techniques set.

use vramscope_collector::{ConfError, Scope, Settings as PoolSettings};

use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::models::{GptConfig, Perceptron, Recompute};
use crate::modules::Parameter;
use crate::optimizers::{Adam, ClearGradients, Method, Optimizer};
use crate::training::{StepOptions, Trainer};

/// The kind of device that a program runs on. It determines the default sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// This machine's CPU.
    Host,
    /// A GPU.
    Cuda,
}

impl DeviceKind {
    /// Returns the name, as in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Cuda => "cuda",
        }
    }
}

/// The scale of a program's default sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Some MiB, for a CPU: the default on the host.
    Small,
    /// Hundreds of MiB, like the programs in `examples/pytorch`: the default on GPUs.
    Large,
}

impl Scale {
    /// Returns the first value on the small scale and the second on the large one.
    fn pick<T>(self, small: T, large: T) -> T {
        match self {
            Self::Small => small,
            Self::Large => large,
        }
    }
}

/// Sizes and steps that the user chose instead of the defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Number of steps.
    pub steps: Option<u64>,
    /// Blocks of the GPT.
    pub layers: Option<usize>,
    /// Width of the GPT's residual stream.
    pub width: Option<usize>,
    /// Number of sequences or images in a batch. For programs with batches of rows, a factor of the
    /// default number.
    pub batch: Option<usize>,
    /// Tokens of a sequence.
    pub length: Option<usize>,
    /// Seed of parameters and data.
    pub seed: Option<u64>,
    /// The scale of the default sizes; `None` for the scale of the device.
    pub scale: Option<Scale>,
}

/// The results that a pass over held-out data keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum KeptResults {
    /// Copies the outputs to the host.
    #[default]
    OnHost,
    /// Appends the outputs to a list, without their gradient graph.
    Outputs,
    /// Appends the outputs to a list, with their gradient graph.
    OutputsWithGraph,
    /// Adds up the losses as tensors, with their gradient graphs.
    LossesWithGraph,
}

/// The steps after which the program releases cached memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum EmptyCache {
    /// Never.
    #[default]
    Never,
    /// After the first step.
    AfterWarmUp,
    /// After every step.
    EveryStep,
}

/// The allocator that tensors get memory from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Allocator {
    /// The pool.
    #[default]
    Pool,
    /// CUDA's stream-ordered pool (`cuMemAllocAsync`).
    Async,
    /// One call of the driver for each request (`cuMemAlloc`; a memory map on the host).
    Driver,
}

/// The way in which training data gets to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Loading {
    /// All data is copied before the first step.
    #[default]
    Eager,
    /// Each batch is generated when it is needed.
    Generator,
    /// All data is in ordinary host memory; each batch is copied when it is needed.
    Host,
    /// Each batch is read from a memory-mapped file when it is needed.
    Lazy,
    /// The next batch is copied through pinned memory on a second stream while a step computes.
    PinnedStaging,
}

/// The protection of memory that two streams use against early reuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StreamSafety {
    /// Before the free, the stream that allocated the memory waits for the other stream.
    #[default]
    Wait,
    /// The program records the other stream's use in the pool (`record_stream`).
    RecordStream,
    /// The memory is freed without protection, which is a mistake.
    Unprotected,
}

/// The sizes and switches of a program. Techniques change them.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The kind of device that the sizes are for.
    pub(super) device: DeviceKind,
    /// The scale of default sizes.
    scale: Scale,
    /// Number of steps.
    pub(super) steps: u64,
    /// Seed of parameters and data.
    pub(super) seed: u64,
    /// Size of the GPT. Its `length` is the maximum length of a sequence.
    pub(super) gpt: GptConfig,
    /// Number of sequences (GPT) or images (ResNet) in a batch.
    pub(super) batch: usize,
    /// Number of sequences in the first step's batch, if it differs from `batch`.
    pub(super) first_batch: Option<usize>,
    /// Sequence lengths that the steps use one after the other, repeatedly. If empty, all sequences
    /// have the model's length.
    pub(super) lengths: Vec<usize>,
    /// Number of models that are trained in turns.
    pub(super) models: usize,
    /// Sequences in a pass over held-out data after each step; 0 for none.
    pub(super) evaluated: usize,
    /// Method and learning rate of the optimizer.
    pub(super) optimizer: (Method, f32),
    /// Number of rows in a batch of the two-layer network.
    pub(super) rows: usize,
    /// Width of the two-layer network's inputs and outputs.
    pub(super) row_width: usize,
    /// Width of the two-layer network's hidden layer.
    pub(super) hidden: usize,
    /// Number of residual blocks in each stage of the ResNet.
    pub(super) depth: usize,
    /// Height and width of the ResNet's images, in pixels.
    pub(super) pixels: usize,
    /// Number of tokens in the prompt from which text is generated.
    pub(super) prompt: usize,
    /// Maximum number of bytes that the pool may reserve; `None` for no limit.
    pub(super) limit_bytes: Option<u64>,

    /// The parts of the model that the backward pass computes again.
    pub(super) recompute: Recompute,
    /// Data type in which linear layers and convolutions compute the forward pass.
    pub(super) precision: DType,
    /// Number of parts into which a batch is split. Their gradients are accumulated.
    pub(super) parts: usize,
    /// The way in which gradients are cleared before a step.
    pub(super) clear: ClearGradients,
    /// Whether logits are freed before the backward pass.
    pub(super) frees_logits: bool,
    /// The results that passes over held-out data keep.
    pub(super) kept: KeptResults,
    /// The steps after which cached memory is released.
    pub(super) empty_cache: EmptyCache,
    /// Whether the model is dropped and its memory released at the end.
    pub(super) releases_memory: bool,
    /// Whether models are moved to the host while another model is trained.
    pub(super) offloads: bool,
    /// Whether ReLUs overwrite their arguments (two-layer network).
    pub(super) in_place: bool,
    /// Whether inference records gradient graphs.
    pub(super) records_graph: bool,
    /// Whether weights are 8-bit integers (inference).
    pub(super) int8_weights: bool,
    /// Whether a cache keeps the keys and values of earlier tokens (generation).
    pub(super) kv_cache: bool,
    /// The way in which training data gets to the device.
    pub(super) loading: Loading,
    /// Whether the batch grows until a step runs out of memory.
    pub(super) searches_batch: bool,
    /// The protection of memory that two streams use.
    pub(super) streams: StreamSafety,
    /// Whether all captured graphs share one private pool.
    pub(super) shares_graph_pool: bool,
    /// Settings of the pool, as in `PYTORCH_ALLOC_CONF`.
    pub(super) alloc_conf: Vec<&'static str>,
    /// The allocator.
    pub(super) allocator: Allocator,
}

/// AdamW with PyTorch's weight decay.
pub(super) const ADAMW: Method = Method::Adam(Adam { weight_decay: 0.01, ..Adam::PYTORCH });

impl Settings {
    /// Returns the default sizes without any technique, for `scale` or else the scale of `device`.
    pub(super) fn new(device: DeviceKind, scale: Option<Scale>) -> Self {
        let scale = scale.unwrap_or(match device {
            DeviceKind::Host => Scale::Small,
            DeviceKind::Cuda => Scale::Large,
        });
        let pick = |small, large| scale.pick(small, large);
        Self {
            device,
            scale,
            steps: 8,
            seed: 1,
            gpt: GptConfig {
                vocabulary: pick(256, 512),
                layers: 4,
                width: pick(64, 256),
                heads: 4,
                length: pick(64, 128),
            },
            batch: pick(8, 16),
            first_batch: None,
            lengths: Vec::new(),
            models: 1,
            evaluated: 0,
            optimizer: (ADAMW, 1e-3),
            rows: pick(512, 4096),
            row_width: pick(256, 1024),
            hidden: pick(256, 1024),
            depth: 1,
            pixels: pick(16, 32),
            prompt: pick(48, 192),
            limit_bytes: None,
            recompute: Recompute::Nothing,
            precision: DType::F32,
            parts: 1,
            clear: ClearGradients::ToNone,
            frees_logits: false,
            kept: KeptResults::OnHost,
            empty_cache: EmptyCache::Never,
            releases_memory: false,
            offloads: false,
            in_place: false,
            records_graph: false,
            int8_weights: false,
            kv_cache: false,
            loading: Loading::Eager,
            searches_batch: false,
            streams: StreamSafety::Wait,
            shares_graph_pool: false,
            alloc_conf: Vec::new(),
            allocator: Allocator::Pool,
        }
    }

    /// Returns the first value on the small scale and the second on the large one.
    pub(super) fn pick<T>(&self, small: T, large: T) -> T {
        self.scale.pick(small, large)
    }

    /// Replaces default sizes by the sizes that the user chose.
    pub(super) fn set_sizes(&mut self, sizes: &Sizes) {
        let Sizes { steps, layers, width, batch, length, seed, scale: _ } = *sizes;
        self.steps = steps.unwrap_or(self.steps);
        self.seed = seed.unwrap_or(self.seed);
        self.gpt.layers = layers.unwrap_or(self.gpt.layers);
        self.gpt.width = width.unwrap_or(self.gpt.width);
        if let Some(length) = length {
            // Lengths that vary keep their proportions.
            let longest = self.gpt.length;
            let scaled = |size: usize| (size.saturating_mul(length) / longest).max(1);
            self.lengths.iter_mut().for_each(|each| *each = scaled(*each));
            self.prompt = scaled(self.prompt);
            self.gpt.length = length;
        }
        if let Some(batch) = batch {
            let scaled = |size: usize| (size.saturating_mul(batch) / self.batch).max(1);
            self.first_batch = self.first_batch.map(scaled);
            self.rows = scaled(self.rows);
            self.batch = batch;
        }
    }

    /// Returns a message if the sizes are not usable.
    pub(super) fn problem(&self) -> Option<String> {
        let GptConfig { layers, width, heads, length, .. } = self.gpt;
        let sizes = [("layers", layers, 1024), ("width", width, 1 << 16), ("batch", self.batch, 1 << 13)];
        for (name, size, largest) in sizes.into_iter().chain([("length", length, 1 << 16)]) {
            if size == 0 || size > largest {
                return Some(format!("{name} must be from 1 to {largest}, not {size}"));
            }
        }
        if !width.is_multiple_of(heads) {
            return Some(format!("the width {width} is not a multiple of the {heads} attention heads"));
        }
        if !self.batch.is_multiple_of(self.parts) {
            return Some(format!("a batch of {} cannot be split into {} equal parts", self.batch, self.parts));
        }
        None
    }

    /// Returns the settings of the pool.
    ///
    /// # Errors
    /// If the techniques' settings cannot be combined.
    pub(super) fn pool_settings(&self) -> Result<PoolSettings, ConfError> {
        let settings = PoolSettings::parse(&self.alloc_conf.join(","))?;
        Ok(PoolSettings { limit_bytes: self.limit_bytes, ..settings })
    }

    /// Creates a trainer of a model with these parameters.
    pub(super) fn trainer(&self, device: &Device, parameters: Vec<Parameter>) -> Result<Trainer> {
        let (method, rate) = self.optimizer;
        let options = StepOptions { precision: self.precision, parts: self.parts, clear: self.clear };
        Trainer::new(device, parameters, Optimizer::new(method, rate), options)
    }

    /// Creates the two-layer network.
    pub(super) fn perceptron(&self, device: &Device) -> Result<Perceptron> {
        let _scope = Scope::open("model");
        Perceptron::new(device, &[self.row_width, self.hidden, self.row_width], self.seed)
    }

    /// Returns the length of the sequences of step `step`, from 0.
    pub(super) fn length_at(&self, step: u64) -> usize {
        match self.lengths.len() {
            0 => self.gpt.length,
            count => self.lengths[step as usize % count],
        }
    }

    /// Returns the number of sequences of step `step`, from 0.
    pub(super) fn batch_at(&self, step: u64) -> usize {
        self.first_batch.filter(|_| step == 0).unwrap_or(self.batch)
    }
}
