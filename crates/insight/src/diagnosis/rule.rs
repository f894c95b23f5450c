//! The rules that look for problems, each with the evidence that it needs.

use super::finding::Problem;
use crate::evidence::Evidence;

/// A rule: a question about a recording. [`id`](Self::id) is the name in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Which requests failed, and why.
    Failures,
    /// Whether memory grows from step to step.
    Growth,
    /// Whether much more is reserved than the live blocks need.
    Waste,
    /// Whether free memory in pieces, or segments that come and go, cost memory.
    Segments,
    /// Whether freed blocks wait for other streams.
    Streams,
    /// Whether private pools hold free memory.
    PrivatePools,
    /// Whether temporaries make up the peak.
    Temporaries,
    /// Whether an optimizer's step makes up the peak.
    OptimizerStep,
    /// Whether the start of the program needs more than the rest.
    Start,
    /// Whether weights or an optimizer's state exist twice.
    Copies,
    /// Whether gradients, activations or the optimizer's state dominate the peak.
    Dominant,
    /// Whether memory outside of the pool grows.
    Outside,
    /// Whether one line makes equal buffers that are freed together.
    LayerBuffers,
    /// Whether exceptions of failed steps keep memory.
    Exceptions,
    /// Whether an evaluation needs more than training.
    Evaluation,
    /// Whether pinned host memory is wasted.
    Pinned,
    /// Whether memory is kept after its last use.
    DeadWeight,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 17] = [
        Self::Failures,
        Self::Growth,
        Self::Waste,
        Self::Segments,
        Self::Streams,
        Self::PrivatePools,
        Self::Temporaries,
        Self::OptimizerStep,
        Self::Start,
        Self::Copies,
        Self::Dominant,
        Self::Outside,
        Self::LayerBuffers,
        Self::Exceptions,
        Self::Evaluation,
        Self::Pinned,
        Self::DeadWeight,
    ];

    /// Returns the rule that finds a problem.
    #[must_use]
    pub const fn of(problem: Problem) -> Self {
        match problem {
            Problem::OutOfMemory(_) => Self::Failures,
            Problem::GrowthOfOutputs
            | Problem::GrowthOfSummedLoss
            | Problem::GrowthOfCache
            | Problem::GrowthOfHooks
            | Problem::GrowthOfOptimizers
            | Problem::GrowthOfServer => Self::Growth,
            Problem::OverReserved | Problem::RoundingWaste | Problem::SmallTensors => Self::Waste,
            Problem::NearFailure
            | Problem::OversizeRanges
            | Problem::IgnoredThreshold
            | Problem::EmptiedCache
            | Problem::RecreatedSegments => Self::Segments,
            Problem::PendingFrees => Self::Streams,
            Problem::PrivatePools | Problem::UnusedPool | Problem::StrandedBlocks => Self::PrivatePools,
            Problem::TemporaryPeak => Self::Temporaries,
            Problem::OptimizerStepPeak => Self::OptimizerStep,
            Problem::StartPeak => Self::Start,
            Problem::CopiedWeights | Problem::CopiedOptimizerState => Self::Copies,
            Problem::DominantOptimizerState | Problem::DominantGradients | Problem::DominantActivations => {
                Self::Dominant
            }
            Problem::GrowthOutside | Problem::OtherProcesses => Self::Outside,
            Problem::LayerBuffers => Self::LayerBuffers,
            Problem::KeptByException => Self::Exceptions,
            Problem::EvaluationPeak => Self::Evaluation,
            Problem::StaleGradients | Problem::StaleResults => Self::DeadWeight,
            Problem::PinnedRounding | Problem::PinnedBuffersKept => Self::Pinned,
        }
    }

    /// Returns the machine-readable name: the family of the problems' ids, or one of them.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Failures => "oom",
            Self::Growth => "growth",
            Self::Waste => "waste",
            Self::Segments => "fragmentation",
            Self::Streams => "streams.pending",
            Self::PrivatePools => "pools.private",
            Self::Temporaries => "peak.temporary",
            Self::OptimizerStep => "peak.optimizer_step",
            Self::Start => "peak.start",
            Self::Copies => "copies",
            Self::Dominant => "dominant",
            Self::Outside => "outside.growth",
            Self::LayerBuffers => "peak.layer_buffers",
            Self::Exceptions => "kept.exception",
            Self::Evaluation => "peak.evaluation",
            Self::Pinned => "pinned",
            Self::DeadWeight => "dead",
        }
    }

    /// Returns the evidence without which the rule has no answer.
    #[must_use]
    pub const fn needs(self) -> &'static [Evidence] {
        use Evidence::{Beginning, Counters, DeviceMemory, History, Segments, Stacks, Steps, Streams};
        match self {
            Self::Failures | Self::Temporaries | Self::Dominant | Self::Pinned => &[History],
            Self::Waste | Self::Segments => &[History, Counters, Segments],
            Self::Streams => &[History, Counters, Streams],
            Self::PrivatePools => &[Counters, Segments, Streams],
            Self::Growth | Self::Exceptions => &[History, Steps],
            Self::DeadWeight => &[History, Stacks, Steps],
            Self::OptimizerStep | Self::Copies | Self::Evaluation | Self::LayerBuffers => &[History, Stacks],
            Self::Start => &[History, Beginning, Steps],
            Self::Outside => &[History, DeviceMemory],
        }
    }

    /// Returns the evidence without which the rule cannot answer "no", in addition to what it
    /// [needs](Self::needs): copies that were made before a late recording began do not show.
    #[must_use]
    pub const fn needs_for_no(self) -> &'static [Evidence] {
        match self {
            Self::Copies => &[Evidence::Beginning],
            _ => &[],
        }
    }

    /// Returns true if "nothing found" needs an answer of this rule.
    #[must_use]
    pub const fn is_essential(self) -> bool {
        matches!(
            self,
            Self::Failures | Self::Growth | Self::Waste | Self::Temporaries | Self::OptimizerStep | Self::Copies
        )
    }

    /// Returns what the rule answers, as the subject of "cannot be seen".
    #[must_use]
    pub const fn subject(self) -> &'static str {
        match self {
            Self::Failures => "failed requests",
            Self::Growth => "growth from step to step",
            Self::Waste => "waste over time",
            Self::Segments => "fragmentation over time",
            Self::Streams => "frees that wait for other streams",
            Self::PrivatePools => "private pools",
            Self::Temporaries => "temporaries at the peak",
            Self::OptimizerStep => "what the optimizer's step needs",
            Self::Start => "what the program's start needs",
            Self::Copies => "copies of weights",
            Self::Dominant => "what the peak consists of",
            Self::Outside => "memory outside of the pool",
            Self::LayerBuffers => "equal buffers that are freed together",
            Self::Exceptions => "what exceptions of failed steps keep",
            Self::Evaluation => "what an evaluation needs",
            Self::Pinned => "pinned host memory",
            Self::DeadWeight => "memory that is kept after its last use",
        }
    }
}
