//! A problem that a recording shows, with its evidence and a remedy that can be simulated.

use std::fmt;

use vramscope_pool::Settings;
use vramscope_pool::rerun::{Edits, Workload};
use vramscope_trace::{ByteSize, Count, DeviceId};

use crate::autopsy::{Autopsy, OomCause, OutOfMemory, Remedies, Remedy, RemedyKind};

/// Divisor: a twentieth of the recorded reserved peak is the least saving that counts, and the most
/// growth that a remedy for other figures may cause.
const MIN_SAVING: u64 = 20;
/// Divisor: a simulation reproduces the recording if its reserved peak is within a hundredth of the
/// recorded one.
const MAX_DEVIATION: u64 = 100;
/// Minimum saving by other settings, in percent of the recorded reserved peak, that shows that much
/// more is reserved than needed.
pub(super) const MIN_OVER_RESERVED_PERCENT: u64 = 15;
/// Minimum saving by other settings, in percent, if it is less than [`LARGE_SAVING_BYTES`].
pub(super) const MIN_SMALL_OVER_RESERVED_PERCENT: u64 = 20;
/// Bytes from which on a saving is large.
pub(super) const LARGE_SAVING_BYTES: u64 = 256 << 20;
/// Divisor: among settings whose reserved peaks differ by less than a hundredth, the simplest are
/// recommended.
const SIMPLER_PART: u64 = 100;

/// A kind of problem. [`id`](Self::id) is the name in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Problem {
    /// A request failed with out of memory.
    OutOfMemory(OomCause),
    /// Memory grows: results of the model are kept, and with them the activations of each step.
    GrowthOfOutputs,
    /// Memory grows: a sum of losses keeps the activations of each step.
    GrowthOfSummedLoss,
    /// Memory grows: a list or a cache of the program gets longer.
    GrowthOfCache,
    /// Memory grows: hooks of modules keep activations.
    GrowthOfHooks,
    /// Memory grows: optimizers are created again while the old ones are kept.
    GrowthOfOptimizers,
    /// Cached segments had to be released for a request, because free memory was in pieces.
    NearFailure,
    /// Free ranges above `max_split_size_mb` are not used (pytorch/pytorch#193400).
    OversizeRanges,
    /// `garbage_collection_threshold` has no effect (pytorch/pytorch#106660).
    IgnoredThreshold,
    /// The program empties the cache again and again.
    EmptiedCache,
    /// Segments are released and obtained from the driver again and again.
    RecreatedSegments,
    /// A large part of the peak are allocations that are freed soon after.
    TemporaryPeak,
    /// The start of the program needs much more memory than the rest.
    StartPeak,
    /// The optimizer's state is the largest part of the peak.
    DominantOptimizerState,
    /// Gradients are the largest part of the peak.
    DominantGradients,
    /// Activations are the largest part of the peak.
    DominantActivations,
    /// Freed blocks wait for other streams.
    PendingFrees,
    /// Private pools hold free memory that nothing else can use.
    PrivatePools,
    /// Rounding of sizes, or the rest of segments, wastes memory.
    RoundingWaste,
    /// Much more is reserved than the live blocks need, without a failed request.
    OverReserved,
    /// Temporaries of an optimizer's multi-tensor step are a large part of the peak.
    OptimizerStepPeak,
    /// The weights of a model exist more than once.
    CopiedWeights,
    /// The state of an optimizer exists more than once.
    CopiedOptimizerState,
    /// Memory outside of the pool grows.
    GrowthOutside,
    /// Memory of a program without steps grows slowly.
    GrowthOfServer,
    /// One line makes equal buffers, such as one for each layer, that are freed together.
    LayerBuffers,
    /// A private pool without live blocks is not released.
    UnusedPool,
    /// Blocks keep a private pool from releasing free parts of its segments.
    StrandedBlocks,
    /// Rounding the sizes of very many small tensors wastes memory.
    SmallTensors,
    /// The exception of a failed step keeps its activations.
    KeptByException,
    /// An evaluation needs more memory than training.
    EvaluationPeak,
    /// Other processes hold much of the device, and the pool has no cap.
    OtherProcesses,
    /// Rounding to powers of two wastes pinned host memory.
    PinnedRounding,
    /// Freed buffers of pinned host memory are kept although they are not needed.
    PinnedBuffersKept,
    /// Gradients are kept after the optimizer's step, through the next forward pass.
    StaleGradients,
    /// Results of a step are kept until the next step replaces them.
    StaleResults,
}

impl Problem {
    /// Returns the machine-readable name: a family and a kind, such as `growth.outputs`.
    #[must_use]
    pub fn id(self) -> String {
        match self {
            Self::OutOfMemory(cause) => format!("oom.{}", cause.id()),
            _ => self.fixed_id().to_owned(),
        }
    }

    /// Returns true if the program or its settings do something wrong; false if the memory serves a
    /// purpose that could be reached with less, or waste is all that is known.
    pub(super) const fn is_mistake(self) -> bool {
        !matches!(
            self,
            Self::TemporaryPeak
                | Self::StartPeak
                | Self::DominantOptimizerState
                | Self::DominantGradients
                | Self::DominantActivations
                | Self::RoundingWaste
                | Self::OverReserved
                | Self::OptimizerStepPeak
                | Self::CopiedWeights
                | Self::LayerBuffers
        )
    }

    /// Returns the name of a problem other than out of memory.
    const fn fixed_id(self) -> &'static str {
        match self {
            Self::OutOfMemory(_) => "oom",
            Self::GrowthOfOutputs => "growth.outputs",
            Self::GrowthOfSummedLoss => "growth.summed_loss",
            Self::GrowthOfCache => "growth.cache",
            Self::GrowthOfHooks => "growth.hooks",
            Self::GrowthOfOptimizers => "growth.optimizers",
            Self::NearFailure => "fragmentation.near_failure",
            Self::OversizeRanges => "fragmentation.oversize",
            Self::IgnoredThreshold => "fragmentation.ignored_threshold",
            Self::EmptiedCache => "segments.empty_cache",
            Self::RecreatedSegments => "segments.recreated",
            Self::TemporaryPeak => "peak.temporary",
            Self::StartPeak => "peak.start",
            Self::DominantOptimizerState => "dominant.optimizer",
            Self::DominantGradients => "dominant.gradients",
            Self::DominantActivations => "dominant.activations",
            Self::PendingFrees => "streams.pending",
            Self::PrivatePools => "pools.private",
            Self::RoundingWaste => "waste.rounding",
            Self::OverReserved => "waste.reserved",
            Self::OptimizerStepPeak => "peak.optimizer_step",
            Self::CopiedWeights => "copies.weights",
            Self::CopiedOptimizerState => "copies.optimizer",
            Self::GrowthOutside => "outside.growth",
            Self::GrowthOfServer => "growth.server",
            Self::LayerBuffers => "peak.layer_buffers",
            Self::UnusedPool => "pools.unused",
            Self::StrandedBlocks => "pools.stranded",
            Self::SmallTensors => "waste.small_tensors",
            Self::KeptByException => "kept.exception",
            Self::EvaluationPeak => "peak.evaluation",
            Self::OtherProcesses => "outside.processes",
            Self::PinnedRounding => "pinned.rounding",
            Self::PinnedBuffersKept => "pinned.kept",
            Self::StaleGradients => "dead.gradients",
            Self::StaleResults => "dead.results",
        }
    }

    /// Returns lines of a program that show the remedy of a problem; empty if a sentence says it
    /// all.
    pub(super) const fn remedy_code(self) -> &'static [&'static str] {
        match self {
            Self::GrowthOfOutputs => &["outputs.append(output.detach().cpu())"],
            Self::GrowthOfSummedLoss => &["total += loss.item()  # not: total += loss"],
            Self::GrowthOfHooks => &["handle = module.register_forward_hook(hook)", "handle.remove()  # after use"],
            Self::GrowthOfCache => &[
                "kept.append(tensor.cpu())  # not: kept.append(tensor)",
                "kept = collections.deque(maxlen=100)  # or keep only the last ones",
            ],
            Self::CopiedWeights => &[
                "model.load_state_dict(torch.load(path, map_location=\"cpu\"))",
                "copy = {name: one.cpu() for name, one in model.state_dict().items()}",
            ],
            Self::CopiedOptimizerState => {
                &["state = torch.load(path, map_location=\"cpu\")", "optimizer.load_state_dict(state); del state"]
            }
            Self::EmptiedCache => &["# remove from the loop: torch.cuda.empty_cache()"],
            Self::DominantOptimizerState => RemedyKind::SmallerState.code(),
            Self::DominantGradients => &["optimizer.zero_grad(set_to_none=True)"],
            Self::DominantActivations => RemedyKind::Checkpoint.code(),
            Self::PendingFrees => RemedyKind::WaitStream.code(),
            Self::PrivatePools => &["torch.cuda.graph(graph, pool=first_graph.pool())"],
            Self::StaleGradients => &["optimizer.step()", "optimizer.zero_grad(set_to_none=True)"],
            Self::StaleResults => &["del outputs, loss  # at the end of the step"],
            Self::OtherProcesses => &["torch.cuda.set_per_process_memory_fraction(0.5)"],
            Self::KeptByException => &["failures.append(str(error))  # not: failures.append(error)"],
            Self::SmallTensors => &["losses = torch.empty(steps, device=\"cuda\")", "losses[step] = loss.detach()"],
            _ => &[],
        }
    }
}

/// How serious a finding is, by its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Less than a quarter of the reserved peak.
    Low,
    /// At least a quarter of the reserved peak.
    Medium,
    /// At least half of the reserved peak, or growth that reaches the capacity soon.
    High,
    /// A request failed.
    Critical,
}

impl Severity {
    /// Returns the severity of a finding of `bytes`, in a recording with the reserved peak
    /// `peak_reserved_bytes`.
    pub(super) fn of(bytes: u64, peak_reserved_bytes: u64) -> Self {
        if bytes >= peak_reserved_bytes.div_ceil(2) {
            Self::High
        } else if bytes >= peak_reserved_bytes / 4 {
            Self::Medium
        } else {
            Self::Low
        }
    }

    /// Returns the name for users and in JSON, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The figure that a change must reduce to count as a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// The reserved peak, by a twentieth at least.
    ReservedPeak,
    /// The allocated peak, by a twentieth at least, while the reserved peak grows by at most a
    /// twentieth; or the reserved peak by a twentieth.
    AllocatedPeak,
    /// The number of allocations by the driver, to at most half, while the reserved peak grows by
    /// at most a twentieth.
    DeviceAllocations,
}

/// A change to simulate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trial {
    /// The change as a sentence; `None` for the finding's own remedy.
    pub(super) detail: Option<String>,
    pub(super) settings: Settings,
    pub(super) edits: Edits,
    pub(super) goal: Goal,
}

/// The result of the simulation of a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedRemedy {
    /// Bytes by which the reserved peak of the changed run is below the recorded one; of a failure,
    /// below that of the unchanged program with enough memory.
    pub saves_bytes: u64,
    /// The reserved peak of the changed run.
    pub peak_reserved_bytes: u64,
    /// How often the driver allocates memory in the recorded and in the changed run, if the remedy
    /// is meant to reduce that.
    pub device_allocations: Option<(u64, u64)>,
    /// Bytes by which the allocated peak of the changed run is below the recorded one, if the
    /// remedy is meant to reduce that: freed memory may still not be released.
    pub saves_allocated_bytes: Option<u64>,
}

/// A problem that a recording shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The kind of problem.
    pub problem: Problem,
    /// How serious it is.
    pub severity: Severity,
    /// The device.
    pub device: DeviceId,
    /// The numbers of the first and the last event of the evidence; equal numbers if one moment
    /// shows the problem.
    pub events: (u64, u64),
    /// The bytes that the problem costs, at the moment that shows it best.
    pub bytes: u64,
    /// The call of the program at fault, or sizes and stream where stacks are missing.
    pub site: String,
    /// What happens, as one sentence.
    pub summary: String,
    /// Of growth: the bytes that the growing memory has in the end.
    pub grown_to_bytes: Option<u64>,
    /// Of growth: the steps after which the pool has all memory that it can get, if that is known.
    pub steps_left: Option<u64>,
    /// What helps, if something is known, as one sentence.
    pub remedy: Option<String>,
    /// Lines of a program that show the remedy; empty for settings, and if the sentence says it
    /// all.
    pub code: &'static [&'static str],
    /// The result of the simulation of the remedy; `None` if it was not checked.
    pub checked: Option<CheckedRemedy>,
    /// Whether `site` names a call of the program, not sizes and stream.
    pub(crate) names_call: bool,
    /// Changes to simulate.
    pub(super) trials: Vec<Trial>,
}

impl Finding {
    /// Returns true if the finding has a remedy to simulate with [`check`](Self::check).
    #[must_use]
    pub fn can_be_checked(&self) -> bool {
        !self.trials.is_empty()
    }

    /// Returns the failed request that the finding is about; `None` for other findings.
    #[must_use]
    pub fn failure_in<'a>(&self, autopsy: &'a Autopsy) -> Option<&'a OutOfMemory> {
        let is_failure = matches!(self.problem, Problem::OutOfMemory(_));
        let is_of_finding =
            |oom: &&OutOfMemory| oom.failure.device == self.device && oom.failure.event == self.events.0;
        autopsy.ooms().iter().filter(|_| is_failure).find(is_of_finding)
    }

    /// Keeps the smallest of the checked remedies of the failure that the finding is about; without
    /// one, the first that is not checked.
    pub fn set_remedies(&mut self, remedies: &Remedies) {
        let checked = remedies.remedies.iter().find(|remedy| remedy.is_checked);
        // The cause itself can be removed, even if a smaller program would fit beside it.
        let removes_cause = |remedy: &&Remedy| match self.problem {
            Problem::OutOfMemory(OomCause::Outside) => remedy.kind == RemedyKind::FreeOutside,
            Problem::OutOfMemory(OomCause::Leak) => remedy.kind == RemedyKind::FreeEarlier && remedy.is_checked,
            _ => false,
        };
        let Some(remedy) = remedies.remedies.iter().find(removes_cause).or(checked).or(remedies.remedies.first())
        else {
            return;
        };
        self.code = remedy.kind.code();
        let mut letters = remedy.detail.chars();
        self.remedy = Some(match (remedy.kind, letters.next()) {
            (RemedyKind::Setting, Some('P')) => format!("Set {} for the program.", remedy.detail),
            (_, Some(first)) => format!("{}{}.", first.to_uppercase(), letters.as_str()),
            (_, None) => return,
        });
        let (saves_bytes, peak_reserved_bytes) = (remedy.saves_bytes, remedy.peak_reserved_bytes);
        let result =
            CheckedRemedy { saves_bytes, peak_reserved_bytes, device_allocations: None, saves_allocated_bytes: None };
        self.checked = Some(result).filter(|_| remedy.is_checked);
    }

    /// Simulates the remedies of the finding, and keeps the best that reaches its goal: a reserved
    /// peak that is a twentieth lower, or half as many allocations by the driver. The pool may
    /// reserve `capacity_bytes`.
    ///
    /// The result means something only if the unchanged program reproduces the recorded peak; see
    /// [`Diagnosed::findings_to_check`](super::Diagnosed::findings_to_check).
    pub fn check(&mut self, workload: &Workload, capacity_bytes: Option<u64>) {
        let recorded = &workload.recorded;
        let least_bytes = recorded.peak_reserved_bytes / MIN_SAVING;
        // The saving by which another trial must be better.
        let better_bytes = match self.problem {
            // The trials are sorted, the simplest settings first.
            Problem::OverReserved => recorded.peak_reserved_bytes / SIMPLER_PART,
            _ => 0,
        };
        for trial in &self.trials {
            let run = workload.edited(&trial.edits).simulate(&trial.settings, capacity_bytes);
            let peak_reserved_bytes = run.peak_reserved_bytes;
            let saves_bytes = recorded.peak_reserved_bytes.saturating_sub(peak_reserved_bytes);
            let calls = match trial.goal {
                Goal::ReservedPeak | Goal::AllocatedPeak => None,
                Goal::DeviceAllocations => {
                    let unchanged = workload.simulate(&trial.settings, capacity_bytes);
                    Some((unchanged.device_allocations, run.device_allocations))
                }
            };
            let saves_allocated_bytes = recorded.peak_allocated_bytes.saturating_sub(run.peak_allocated_bytes);
            let is_hardly_more = peak_reserved_bytes <= recorded.peak_reserved_bytes.saturating_add(least_bytes);
            let is_reached = match calls {
                None if trial.goal == Goal::AllocatedPeak => {
                    saves_bytes >= least_bytes
                        || (is_hardly_more && saves_allocated_bytes >= recorded.peak_allocated_bytes / MIN_SAVING)
                }
                None => saves_bytes >= least_bytes,
                Some((before, after)) => after <= before / 2 && is_hardly_more,
            };
            let saves_allocated_bytes = Some(saves_allocated_bytes).filter(|_| trial.goal == Goal::AllocatedPeak);
            let is_better = self.checked.is_none_or(|best| saves_bytes > best.saves_bytes + better_bytes);
            // A failure that the program handled happens with the remedy, too.
            let permitted = if self.problem == Problem::KeptByException { recorded.ooms } else { 0 };
            if run.ooms > permitted || !is_reached || !is_better {
                continue;
            }
            self.checked = Some(CheckedRemedy {
                saves_bytes,
                peak_reserved_bytes,
                device_allocations: calls,
                saves_allocated_bytes,
            });
            if let Some(detail) = &trial.detail {
                self.remedy = Some(detail.clone());
            }
        }
    }

    /// Returns the simulation's result as one sentence, if the remedy was checked.
    #[must_use]
    pub fn check_text(&self) -> Option<String> {
        let checked = self.checked?;
        let (saves, peak) = (ByteSize(checked.saves_bytes), ByteSize(checked.peak_reserved_bytes));
        let reference = match self.problem {
            // A growing program has no amount of memory that is enough.
            Problem::OutOfMemory(OomCause::Leak) => {
                return Some(format!("Checked by simulation: reserves {peak} at most."));
            }
            Problem::OutOfMemory(_) => " than the unchanged program with enough memory",
            _ => "",
        };
        if let Some(bytes) = checked.saves_allocated_bytes {
            let less = if checked.saves_bytes > 0 { format!("{saves} less, ") } else { String::new() };
            return Some(format!(
                "Checked by simulation: needs {} less at the peak, and reserves {less}{peak} at most.",
                ByteSize(bytes)
            ));
        }
        let less = if checked.saves_bytes > 0 { format!("{saves} less{reference}, ") } else { String::new() };
        let calls = checked.device_allocations.map_or_else(String::new, |(before, after)| {
            format!("; the driver allocates {} instead of {}", Count(after).of("time", "times"), Count(before))
        });
        Some(format!("Checked by simulation: reserves {less}{peak} at most{calls}."))
    }
}

/// Returns true if a simulated run of the unchanged program has the recorded reserved peak, up to
/// 1%: where the free blocks of older segments were is unknown if recording began late. Only then
/// can remedies be [checked](Finding::check). The pool may reserve `capacity_bytes`.
pub(super) fn reproduces_peak(workload: &Workload, settings: &Settings, capacity_bytes: Option<u64>) -> bool {
    let (simulated, recorded) = (workload.simulate(settings, capacity_bytes), &workload.recorded);
    let deviation = simulated.peak_reserved_bytes.abs_diff(recorded.peak_reserved_bytes);
    deviation <= recorded.peak_reserved_bytes / MAX_DEVIATION
}

/// Returns true if `bytes` are at least `percent` of `total`, and not 0.
pub(super) fn is_share(bytes: u64, percent: u64, total: u64) -> bool {
    u128::from(bytes) * 100 >= u128::from(total) * u128::from(percent) && bytes > 0
}
