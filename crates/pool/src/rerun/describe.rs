//! Recorded and simulated decisions of the allocator in words, for users who look for the cause of
//! a divergence.

use vramscope_trace::{EventKind, MempoolId, PoolKey, PoolKind};

use super::cursor::{Outcome, is_assumed_private_pool};
use super::entry::Entry;

/// Describes a recorded allocator event in words, for users; `None` gives "the end of the history".
pub(super) fn describe_entry(entry: Option<&Entry>) -> String {
    entry.map_or_else(|| "the end of the history".to_owned(), |entry| describe_event(&entry.kind))
}

/// Describes in words, for users, the pool's decision in place of the recorded one.
pub(super) fn describe_outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Decision(kind) => describe_event(kind),
        Outcome::Failure(reason) => reason.clone(),
        Outcome::Nothing => "nothing".to_owned(),
    }
}

/// Describes a pool in words, for example `the large pool`, or `the small pool of private pool (0,
/// 1)`.
fn describe_pool(pool: &PoolKey) -> String {
    let kind = match pool.kind {
        PoolKind::Small => "small",
        PoolKind::Large => "large",
    };
    match pool.owner {
        MempoolId(0, 0) => format!("the {kind} pool"),
        owner if is_assumed_private_pool(owner) => format!("the {kind} pool of an unnamed private pool"),
        MempoolId(a, b) => format!("the {kind} pool of private pool ({a}, {b})"),
    }
}

/// Describes an allocator event in words, for users, for example `the block at 0x7f00 becomes
/// free`.
fn describe_event(kind: &EventKind) -> String {
    match kind {
        EventKind::SegmentAllocated { address, size, stream, pool, .. } => {
            let pool = describe_pool(pool);
            format!("a new segment of {size} bytes at {address:#x} for stream {} in {pool}", stream.0)
        }
        EventKind::SegmentFreed { address, size, .. } => {
            format!("the segment of {size} bytes at {address:#x} is released")
        }
        EventKind::SegmentMapped { address, size, stream, pool, .. } => {
            format!("{size} bytes are mapped at {address:#x} for stream {} in {}", stream.0, describe_pool(pool))
        }
        EventKind::SegmentUnmapped { address, size, .. } => format!("{size} bytes are unmapped at {address:#x}"),
        EventKind::BlockAllocated { address, size, requested, stream, pool, .. } => format!(
            "a block of {size} bytes at {address:#x} for a request of {requested} bytes on stream {} from {}",
            stream.0,
            describe_pool(pool)
        ),
        EventKind::FreeRequested { address, .. } => format!("the program frees the block at {address:#x}"),
        EventKind::FreeCompleted { address, .. } => format!("the block at {address:#x} becomes free"),
        EventKind::OutOfMemory { requested, stream, .. } => {
            format!("out of memory for {requested} bytes on stream {}", stream.0)
        }
        EventKind::MemorySample { .. } => "a sample of the device's memory".to_owned(),
        EventKind::Mark { .. } => "a mark".to_owned(),
        EventKind::Gap { lost } => format!("{lost} events are missing"),
    }
}
