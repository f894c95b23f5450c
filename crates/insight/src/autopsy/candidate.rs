//! Changes that may have prevented a failure.

use std::sync::Arc;

use vramscope_pool::Settings;
use vramscope_pool::rerun::Edits;

/// The kind of change that a remedy makes, the smallest change first. [`id`](Self::id) is the name
/// in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RemedyKind {
    /// Other allocator settings.
    Setting,
    /// Wait for all streams before the request.
    Synchronize,
    /// Empty the cache before the request.
    EmptyCache,
    /// Let the allocating stream wait, so that blocks are free at once, in place of
    /// `record_stream`.
    WaitStream,
    /// Release private pools before the request.
    ReleasePool,
    /// Free the memory of one line before the request, or free growing memory at the end of its
    /// step.
    FreeEarlier,
    /// Compute the failed request's result in parts, or without it.
    AvoidTemporary,
    /// Train with a smaller batch.
    SmallerBatch,
    /// Compute activations again in the backward pass.
    Checkpoint,
    /// Keep the optimizer's state in fewer bits.
    SmallerState,
    /// Keep the parameters in fewer bits.
    SmallerParameters,
    /// Permit the pool more memory.
    LargerCap,
    /// Free memory outside of the pool.
    FreeOutside,
}

impl RemedyKind {
    /// Returns lines that show the remedy, of a program or for the shell; empty if its detail says
    /// it all.
    #[must_use]
    pub(crate) const fn code(self) -> &'static [&'static str] {
        match self {
            Self::Synchronize => &["torch.cuda.synchronize()  # before the failed request"],
            Self::EmptyCache => &["torch.cuda.empty_cache()  # before the failed request"],
            Self::WaitStream => &["torch.cuda.current_stream().wait_stream(other)  # not: tensor.record_stream(other)"],
            Self::Checkpoint => &["x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"],
            Self::SmallerState => &["optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())"],
            Self::LargerCap => &["torch.cuda.set_per_process_memory_fraction(1.0)  # or more than now"],
            Self::FreeOutside => &["nvidia-smi  # lists the processes that hold memory"],
            _ => &[],
        }
    }

    /// Returns the machine-readable name.
    #[must_use]
    pub const fn id(self) -> &'static str {
        match self {
            Self::Setting => "setting",
            Self::Synchronize => "synchronize",
            Self::EmptyCache => "empty_cache",
            Self::WaitStream => "wait_stream",
            Self::ReleasePool => "release_pool",
            Self::FreeEarlier => "free_earlier",
            Self::AvoidTemporary => "avoid_temporary",
            Self::SmallerBatch => "smaller_batch",
            Self::Checkpoint => "checkpoint",
            Self::SmallerState => "smaller_state",
            Self::SmallerParameters => "smaller_parameters",
            Self::LargerCap => "larger_cap",
            Self::FreeOutside => "free_outside",
        }
    }
}

/// A change that prevents the failure in a simulated run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// The kind of change.
    pub kind: RemedyKind,
    /// The change, as a line to paste or a phrase.
    pub detail: String,
    /// The reserved peak of the unchanged program with enough memory, minus that of the changed
    /// program: what two runs on a GPU show as `torch.cuda.max_memory_reserved()`. Both runs end
    /// where [`Remedies::follows`](super::Remedies::follows) says.
    pub saves_bytes: u64,
    /// The reserved peak of the changed run.
    pub peak_reserved_bytes: u64,
    /// Whether the simulation shows that the program can go on. False if it depends on what the
    /// program does after the failed request, and the recording does not show that.
    pub is_checked: bool,
}

/// A change of a program. Changes share their lists of requests, because many alternatives have
/// equal lists.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Nothing but the settings.
    None,
    /// Wait for all streams before the failed request.
    Synchronize,
    /// Empty the cache before the failed request.
    EmptyCache,
    /// Release all private pools before the failed request.
    ReleasePools,
    /// Free the blocks of these requests (event numbers) at once, without waiting for other
    /// streams.
    FreeAtOnce(Arc<[u64]>),
    /// Free the block of each request before an event: (event number of the request, event number).
    FreeBefore(Arc<[(u64, u64)]>),
    /// Free the block of each request before an event, and request it again before a later one:
    /// (event number of the request, the two event numbers).
    FreeBetween(Arc<[(u64, u64, u64)]>),
    /// Divide the sizes of these requests (event numbers) by a number, and the failed request's if
    /// the flag is true. The number 0 omits the requests.
    Divide(Arc<[u64]>, u64, bool),
}

impl Change {
    /// Returns true if the change divides requests.
    pub(super) const fn is_division(&self) -> bool {
        matches!(self, Self::Divide(_, parts, _) if *parts > 0)
    }

    /// Returns the change as edits of a program. `failed` are the event numbers of the failed
    /// request and its repetitions, `baseline` are the edits of every run.
    pub(super) fn edits(&self, failed: &[u64], baseline: &Edits) -> Edits {
        let mut edits = baseline.clone();
        match self {
            Self::None => {}
            Self::Synchronize => edits.synchronized_before.extend(failed),
            Self::EmptyCache => edits.emptied_before.extend(failed),
            Self::ReleasePools => edits.pools_released_before.extend(failed),
            Self::FreeAtOnce(requests) => edits.freed_at_once.extend(requests.iter()),
            Self::FreeBefore(frees) => frees.iter().for_each(|&(request, event)| edits.free_before(request, event)),
            Self::FreeBetween(frees) => {
                frees.iter().for_each(|&(request, from, to)| edits.free_between(request, from, to));
            }
            Self::Divide(requests, parts, with_failed) => {
                requests.iter().for_each(|&request| edits.divide(request, *parts));
                if *with_failed {
                    failed.iter().for_each(|&event| edits.divide(event, *parts));
                }
            }
        }
        edits
    }
}

/// One change to try.
#[derive(Clone, Debug)]
pub(super) struct Alternative {
    /// The change, as a line to paste or a phrase.
    pub(super) detail: String,
    /// Other settings than the recorded ones.
    pub(super) settings: Option<Settings>,
    pub(super) change: Change,
}

/// The changes of one kind, the smallest first.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) kind: RemedyKind,
    /// Whether the remedy counts as checked if the run is followed only to the failed request.
    pub(super) is_local: bool,
    /// Whether all alternatives are tried and the one with the lowest peak is taken, not the first
    /// that helps.
    pub(super) wants_least: bool,
    pub(super) alternatives: Vec<Alternative>,
}
