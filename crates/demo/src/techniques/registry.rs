//! The table of all techniques.

use super::settings::{ADAMW, Allocator, EmptyCache, KeptResults, Loading, StreamSafety};
use super::sizes;
use super::technique::{Change, Program, Technique};
use crate::dtype::DType;
use crate::models::Recompute;
use crate::optimizers::{Adam, ClearGradients, Method};

impl Technique {
    /// Returns all techniques; each follows its baseline.
    #[must_use]
    pub fn all() -> &'static [Self] {
        TECHNIQUES
    }

    /// Returns the technique with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Self> {
        TECHNIQUES.iter().find(|technique| technique.name == name)
    }
}

/// Returns a technique that is the baseline of `program`. `sizes` sets its sizes.
const fn baseline(name: &'static str, program: Program, sizes: Change, summary: &'static str) -> Technique {
    Technique { name, summary, program, also_in: &[], baseline: name, choice: None, sizes, apply: sizes::nothing }
}

/// The programs with a training step, except [`Program::Training`].
const OTHER_TRAINING: &[Program] = &[Program::ResNet, Program::Loading, Program::BatchSearch];
/// The programs that run a GPT and support its techniques, except [`Program::Training`].
const OTHER_GPTS: &[Program] = &[Program::BatchSearch, Program::Inference];
/// All programs except [`Program::Training`], for settings of the pool, which work everywhere.
const ALL_OTHERS: &[Program] = &[
    Program::ResNet,
    Program::TwoLayer,
    Program::Inference,
    Program::Generation,
    Program::Loading,
    Program::BatchSearch,
    Program::Streams,
    Program::Graphs,
];

/// The baseline of training with sequences of equal lengths.
const TRAIN: Technique =
    baseline("train", Program::Training, sizes::nothing, "GPT training with AdamW, without any technique.");
/// The baseline of training with sequences of different lengths.
const VARIABLE_LENGTHS: Technique = baseline(
    "variable-lengths",
    Program::Training,
    sizes::variable_lengths,
    "GPT training with sequences of different lengths: a longer one fits no gap that a shorter one left.",
);
/// The baseline of the techniques that choose the allocator.
const ALLOCATOR_POOL: Technique =
    baseline("allocator-pool", Program::Training, sizes::nothing, "GPT training with memory from the pool.");
/// The baseline of the two-layer network.
const TWO_LAYER: Technique = baseline(
    "two-layer",
    Program::TwoLayer,
    sizes::hidden_rows,
    "A two-layer network under no_grad, without any technique.",
);
/// The baseline of inference.
const INFERENCE: Technique = baseline(
    "inference",
    Program::Inference,
    sizes::many_sequences,
    "GPT inference under no_grad: no graph is recorded.",
);
/// The baseline of text generation.
const GENERATE: Technique = baseline(
    "generate",
    Program::Generation,
    sizes::generation,
    "Generation that computes the whole text for every token.",
);
/// The baseline of the search for the largest batch.
const BATCH_FIXED: Technique = baseline(
    "batch-fixed",
    Program::BatchSearch,
    sizes::limited,
    "GPT training under a memory limit, with a small batch.",
);
/// The baseline of the program with two streams.
const SIDE_STREAM: Technique = baseline(
    "side-stream",
    Program::Streams,
    sizes::stream_data,
    "Memory of a side stream is freed after that stream has waited for the main stream, which reads it.",
);
/// The baseline of the program with CUDA graphs.
const GRAPH_POOLS: Technique = baseline(
    "graph-pools",
    Program::Graphs,
    sizes::graph_rows,
    "Captured graphs with a private pool each: their memory adds up.",
);
/// The baseline of the programs that load data.
const LOADING_EAGER: Technique =
    baseline("loading-eager", Program::Loading, sizes::nothing, "All training data is on the device from the start.");
/// The common fields of techniques that choose which results of held-out data are kept.
const KEPT_RESULTS: Technique = Technique { choice: Some("kept results"), sizes: sizes::held_out, ..TRAIN };
/// The common fields of techniques that choose when cached memory is released.
const EMPTY_CACHE: Technique = Technique { choice: Some("empty_cache"), sizes: sizes::large_first_step, ..TRAIN };
/// The common fields of techniques that choose how gradients are cleared before a step.
const GRADIENTS: Technique =
    Technique { also_in: OTHER_TRAINING, choice: Some("gradients"), sizes: sizes::wide_model, ..TRAIN };
/// The common fields of techniques that choose which parts the backward pass computes again.
const CHECKPOINTING: Technique =
    Technique { also_in: OTHER_GPTS, choice: Some("checkpointing"), sizes: sizes::deep_model, ..TRAIN };
/// The common fields of techniques that choose the data type of activations.
const PRECISION: Technique =
    Technique { also_in: OTHER_TRAINING, choice: Some("precision"), sizes: sizes::long_sequences, ..TRAIN };
/// The common fields of techniques that choose the optimizer.
const OPTIMIZER: Technique = Technique {
    also_in: OTHER_TRAINING,
    baseline: "adamw",
    choice: Some("optimizer"),
    sizes: sizes::wide_model_with_state,
    ..TRAIN
};
/// A template of settings of the pool, whose effects show with sequences of different lengths.
const POOL_SETTING: Technique = Technique { also_in: ALL_OTHERS, ..VARIABLE_LENGTHS };
/// The common fields of techniques that choose the allocator.
const ALLOCATOR: Technique = Technique { choice: Some("allocator"), ..ALLOCATOR_POOL };
/// The common fields of techniques that choose how training data gets to the device.
const LOADING: Technique = Technique { choice: Some("loading"), ..LOADING_EAGER };
/// The common fields of techniques that choose how training data in host memory gets to the device.
const LOADING_FROM_HOST: Technique = Technique { baseline: "loading-host", sizes: sizes::large_rows, ..LOADING };
/// The common fields of techniques that choose how memory that two streams use is freed.
const STREAM_SAFETY: Technique = Technique { choice: Some("stream safety"), ..SIDE_STREAM };

/// All techniques; each follows its baseline.
const TECHNIQUES: &[Technique] = &[
    TRAIN,
    Technique {
        name: "keep-outputs",
        summary: "Kept outputs keep their graphs: memory grows by all activations of a forward pass in every step.",
        apply: |settings| settings.kept = KeptResults::OutputsWithGraph,
        ..KEPT_RESULTS
    },
    Technique {
        name: "keep-loss",
        summary: "A sum of loss tensors keeps the graph of every loss; a sum of numbers keeps nothing.",
        apply: |settings| settings.kept = KeptResults::LossesWithGraph,
        ..KEPT_RESULTS
    },
    Technique {
        name: "growing-list",
        summary: "A list of detached outputs grows by their size in every step; on the host it costs no device memory.",
        apply: |settings| settings.kept = KeptResults::Outputs,
        ..KEPT_RESULTS
    },
    Technique {
        name: "free-early",
        summary: "Logits that are freed before the backward pass leave their memory to their gradient.",
        sizes: sizes::large_logits,
        apply: |settings| settings.frees_logits = true,
        ..TRAIN
    },
    Technique {
        name: "empty-cache-after-warm-up",
        summary: "empty_cache once, after a large first step, returns what later steps do not need.",
        apply: |settings| settings.empty_cache = EmptyCache::AfterWarmUp,
        ..EMPTY_CACHE
    },
    Technique {
        name: "empty-cache-every-step",
        summary: "empty_cache in every step makes the device provide the same memory again and again.",
        apply: |settings| settings.empty_cache = EmptyCache::EveryStep,
        ..EMPTY_CACHE
    },
    Technique {
        name: "release-memory",
        summary: "Dropping model and optimizer frees their memory, and empty_cache returns it to the device.",
        apply: |settings| settings.releases_memory = true,
        ..TRAIN
    },
    Technique {
        name: "offload",
        summary: "Two models are trained in turns; the waiting one and its optimizer state are moved to the host.",
        sizes: sizes::two_models,
        apply: |settings| settings.offloads = true,
        ..TRAIN
    },
    Technique {
        name: "accumulate",
        summary: "Gradients of four small batches add up to those of the large one, with a lower peak.",
        sizes: sizes::large_batch,
        apply: |settings| settings.parts = 4,
        ..TRAIN
    },
    Technique {
        name: "gradients-kept",
        summary: "Gradients that are never cleared stay allocated, and add up over all steps.",
        apply: |settings| settings.clear = ClearGradients::Never,
        ..GRADIENTS
    },
    Technique {
        name: "zero-gradients",
        summary: "Gradients that are set to zero stay allocated during the forward pass; freed ones do not.",
        apply: |settings| settings.clear = ClearGradients::ToZero,
        ..GRADIENTS
    },
    Technique {
        name: "checkpoint-blocks",
        summary: "Only the inputs of blocks are kept; their activations are computed again in the backward pass.",
        apply: |settings| settings.recompute = Recompute::Blocks,
        ..CHECKPOINTING
    },
    Technique {
        name: "checkpoint-layers",
        summary: "Only the inputs of attention and MLP are kept; the rest is computed again in the backward pass.",
        apply: |settings| settings.recompute = Recompute::Layers,
        ..CHECKPOINTING
    },
    Technique {
        name: "mixed-bf16",
        summary: "In bf16 mixed precision most activations take half the memory; parameters stay in f32.",
        apply: |settings| settings.precision = DType::Bf16,
        ..PRECISION
    },
    Technique {
        name: "mixed-f16",
        summary: "In f16 most activations take half the memory; a scaled loss keeps small gradients above 0.",
        apply: |settings| settings.precision = DType::F16,
        ..PRECISION
    },
    Technique {
        name: "adamw",
        summary: "AdamW keeps two numbers for each parameter; the optimizer of train.",
        apply: |settings| settings.optimizer = (ADAMW, 1e-3),
        ..OPTIMIZER
    },
    Technique {
        name: "adam-8bit",
        summary: "Adam with 8-bit states needs a quarter of the optimizer's memory.",
        apply: |settings| {
            settings.optimizer = (Method::Adam(Adam { is_8bit: true, weight_decay: 0.01, ..Adam::PYTORCH }), 1e-3);
        },
        ..OPTIMIZER
    },
    Technique {
        name: "sgd",
        summary: "SGD with momentum keeps one number for each parameter, half of AdamW's state.",
        apply: |settings| settings.optimizer = (Method::Sgd { momentum: 0.9 }, 0.05),
        ..OPTIMIZER
    },
    Technique {
        name: "adam",
        summary: "Adam keeps as much as AdamW: two numbers for each parameter.",
        apply: |settings| settings.optimizer = (Method::Adam(Adam::PYTORCH), 1e-3),
        ..OPTIMIZER
    },
    VARIABLE_LENGTHS,
    Technique {
        name: "expandable-segments",
        summary: "Segments that grow by pages leave no gaps between sequences of different lengths.",
        choice: Some("kind of segment"),
        apply: |settings| settings.alloc_conf.push("expandable_segments:True"),
        ..POOL_SETTING
    },
    Technique {
        name: "max-split",
        summary: "Large blocks are not split, so that no small request keeps a large segment from being released.",
        choice: Some("max_split_size"),
        apply: |settings| settings.alloc_conf.push("max_split_size_mb:32"),
        ..POOL_SETTING
    },
    Technique {
        name: "garbage-collection",
        summary: "Above a share of the limit, cached segments that were not used for long are released.",
        choice: Some("garbage collection"),
        apply: |settings| settings.alloc_conf.push("garbage_collection_threshold:0.4"),
        ..POOL_SETTING
    },
    Technique {
        name: "roundup",
        summary: "Sizes are rounded up to few different ones, so that more free blocks fit.",
        choice: Some("rounding"),
        apply: |settings| settings.alloc_conf.push("roundup_power2_divisions:2"),
        ..POOL_SETTING
    },
    ALLOCATOR_POOL,
    Technique {
        name: "allocator-async",
        summary: "GPT training with memory from CUDA's stream-ordered pool (cuMemAllocAsync); GPUs only.",
        apply: |settings| settings.allocator = Allocator::Async,
        ..ALLOCATOR
    },
    Technique {
        name: "allocator-driver",
        summary: "GPT training with a call of the driver for every request (cuMemAlloc; a memory map on the host).",
        apply: |settings| settings.allocator = Allocator::Driver,
        ..ALLOCATOR
    },
    baseline("resnet", Program::ResNet, sizes::images, "ResNet training, with ReLUs and sums in place."),
    TWO_LAYER,
    Technique {
        name: "in-place",
        summary: "A ReLU that overwrites its argument needs no second tensor.",
        apply: |settings| settings.in_place = true,
        ..TWO_LAYER
    },
    INFERENCE,
    Technique {
        name: "inference-with-graph",
        summary: "Without no_grad, inference keeps all activations until its output is freed.",
        apply: |settings| settings.records_graph = true,
        ..INFERENCE
    },
    Technique {
        name: "int8-weights",
        summary: "Weights of 8 bits take a quarter of the memory; each is widened when its layer runs.",
        sizes: sizes::large_weights,
        apply: |settings| settings.int8_weights = true,
        ..INFERENCE
    },
    GENERATE,
    Technique {
        name: "kv-cache",
        summary: "A cache of keys and values costs memory and saves computing the whole text for every token.",
        apply: |settings| settings.kv_cache = true,
        ..GENERATE
    },
    Technique { apply: |settings| settings.loading = Loading::Eager, ..LOADING },
    Technique {
        name: "loading-generator",
        summary: "Batches that are made when they are needed take the memory of one batch.",
        apply: |settings| settings.loading = Loading::Generator,
        ..LOADING
    },
    Technique {
        name: "loading-lazy",
        summary: "Batches of a memory-mapped safetensors file are read when they are needed, one at a time.",
        apply: |settings| settings.loading = Loading::Lazy,
        ..LOADING
    },
    Technique {
        name: "loading-host",
        summary: "Batches are copied from ordinary host memory when they are needed; a step waits for its copy.",
        apply: |settings| settings.loading = Loading::Host,
        ..LOADING_FROM_HOST
    },
    Technique {
        name: "pinned-staging",
        summary: "The next batch is copied while a step computes, for the memory of one more batch.",
        apply: |settings| settings.loading = Loading::PinnedStaging,
        ..LOADING_FROM_HOST
    },
    BATCH_FIXED,
    Technique {
        name: "batch-search",
        summary: "The batch grows until it runs out of memory; training recovers and uses the largest batch that fits.",
        apply: |settings| settings.searches_batch = true,
        ..BATCH_FIXED
    },
    SIDE_STREAM,
    Technique {
        name: "record-stream",
        summary: "record_stream delays the reuse of memory until the other stream has read it, without waiting.",
        apply: |settings| settings.streams = StreamSafety::RecordStream,
        ..STREAM_SAFETY
    },
    Technique {
        name: "no-record-stream",
        summary: "Without a wait or record_stream, memory is overwritten before the other stream reads it.",
        apply: |settings| settings.streams = StreamSafety::Unprotected,
        ..STREAM_SAFETY
    },
    GRAPH_POOLS,
    Technique {
        name: "graph-pools-shared",
        summary: "Captured graphs that share a private pool use the memory that the others have freed.",
        apply: |settings| settings.shares_graph_pool = true,
        ..GRAPH_POOLS
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_consistent() {
        for (index, technique) in TECHNIQUES.iter().enumerate() {
            let Technique { name, summary, .. } = technique;
            assert!(!TECHNIQUES[..index].iter().any(|other| other.name == *name), "{name} is there twice");
            let is_kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(name.chars().all(is_kebab), "{name}");
            assert!(summary.ends_with('.') && summary.len() <= 120, "{name}: {summary}");
            let baseline = Technique::by_name(technique.baseline).expect("the baseline exists");
            assert_eq!(baseline.program, technique.program, "{name}");
            assert!(include_str!("../../README.md").contains(&format!("`{name}`")), "{name} is not in the README");
        }
    }
}
