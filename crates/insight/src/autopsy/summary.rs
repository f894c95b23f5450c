//! The cause of an out-of-memory error in words.

use vramscope_trace::{ByteSize, Category, Count};

use super::contents::Holder;
use super::out_of_memory::OutOfMemory;
use crate::failures::OomCause;

/// Number of lines that a summary names as holders of most memory.
const NAMED_HOLDERS: usize = 2;

/// Facts that a summary names, in addition to those of the failure.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    /// Bytes by which memory grew.
    pub(super) grown_bytes: u64,
    /// When it grew, as the end of a sentence.
    pub(super) during: &'a str,
    /// Live bytes that were requested since the failed step began.
    pub(super) young_bytes: u64,
    /// The sentences about the allocator and the device.
    pub(super) allocator_summary: &'a str,
    /// Free bytes of private pools that only the examination of the program explains.
    pub(super) free_in_pool_bytes: u64,
}

/// Returns the sentences for a failure whose cause is known.
pub(super) fn summary(oom: &OutOfMemory, facts: Facts<'_>) -> String {
    let size = ByteSize(oom.failure.rounded_bytes);
    let active = ByteSize(oom.active_bytes());
    let limit = if oom.is_capped() {
        oom.cap.to_string()
    } else {
        let obtainable = ByteSize(oom.obtainable_bytes());
        // Only the size of the device tells what other processes hold.
        let hint = match oom.device.most_bytes(oom.obtainable_bytes()) {
            Some(_) => "",
            None => " (if the device has more, other processes hold the rest)",
        };
        format!("the {obtainable} that the pool could get{hint}")
    };
    let request = oom.request_line.as_ref().map_or_else(|| size.to_string(), |line| format!("{size} at {line}"));
    match oom.cause {
        OomCause::Leak => format!(
            "Memory grew {}, by {} in all, until {limit} was full; most of it: {}.",
            facts.during,
            ByteSize(facts.grown_bytes),
            oom.site
        ),
        OomCause::Parameters => {
            let kept = match oom.category_bytes(Category::Parameter) {
                0 => "What the program keeps does not fit",
                _ => "The parameters do not fit",
            };
            let largest: Vec<String> = oom.holders.iter().take(NAMED_HOLDERS).map(holder).collect();
            format!(
                "{kept}: {active} was allocated, almost nothing of it freed, when {request} did not fit in {limit}; \
                 most by {}.",
                largest.join(" and ")
            )
        }
        OomCause::OptimizerState => format!(
            "The optimizer's state, which its first step creates, did not fit in {limit}: {request} failed with \
             {active} allocated."
        ),
        OomCause::Temporary => {
            format!("One temporary is too large: {request}, beside {active} allocated, did not fit in {limit}.")
        }
        OomCause::Activations => {
            let activations = oom.category_bytes(Category::Activation);
            let contents = match activations {
                0 => format!("{} requested in the step", ByteSize(facts.young_bytes)),
                _ => format!("{} of activations", ByteSize(activations)),
            };
            format!(
                "The activations of the step did not fit: {request} failed in {limit} with {contents} among {active} \
                 allocated."
            )
        }
        OomCause::PoolWithoutRelease if facts.free_in_pool_bytes > 0 => format!(
            "{request} failed although {} of whole segments were free in the private pool of the request: a pool in \
             use (torch.cuda.use_mem_pool) does not release them.",
            ByteSize(facts.free_in_pool_bytes)
        ),
        _ => {
            let place = oom.request_line.as_ref().map_or_else(String::new, |line| format!("At {line}, "));
            format!("{place}{}{}", facts.allocator_summary, pins(oom))
        }
    }
}

/// Names a holder of memory with its bytes.
fn holder(holder: &Holder) -> String {
    format!("{} ({})", holder.name, ByteSize(holder.bytes))
}

/// Returns which blocks pin a segment, as a sentence; empty unless the cause is fragmentation.
fn pins(oom: &OutOfMemory) -> String {
    let Some(pinning) = oom.pinning.as_ref().filter(|_| oom.cause == OomCause::Fragmentation) else {
        return String::new();
    };
    let (bytes, need) = (ByteSize(pinning.live_bytes), ByteSize(oom.failure.rounded_bytes));
    match pinning.blocks.len() {
        1 => format!(" One block of {bytes} keeps free memory of {need} in pieces."),
        count => format!(" {} blocks of {bytes} in all keep free memory of {need} in pieces.", Count(count as u64)),
    }
}
