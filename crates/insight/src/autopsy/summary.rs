//! The cause of an out-of-memory error as one sentence.

use vramscope_trace::{ByteSize, Category, Count};

use super::cause::OomCause;
use super::out_of_memory::OutOfMemory;

/// Returns the sentence for a failure whose cause is known. `grown_bytes` is what grew from step to
/// step.
pub(super) fn summary(oom: &OutOfMemory, grown_bytes: u64) -> String {
    let (failure, free) = (&oom.failure, &oom.free);
    let size = ByteSize(failure.rounded_bytes);
    let obtainable = ByteSize(oom.obtainable_bytes());
    let limit = if oom.is_capped() { oom.cap.to_string() } else { format!("the {obtainable} that it can get") };
    let site = &oom.request_line;
    match oom.cause {
        OomCause::NeverFits => format!("The request of {size} at {site} is larger than {limit}, so it can never fit."),
        OomCause::Outside => format!(
            "Memory outside of the pool fills the device: the pool holds {}, the driver had {} free, and other \
             processes or libraries hold about {}.",
            ByteSize(failure.usage.reserved_bytes),
            ByteSize(failure.device_free_bytes),
            ByteSize(oom.outside_bytes.unwrap_or(0))
        ),
        OomCause::PendingFrees => format!(
            "{size} at {site} would fit in memory whose free was still pending or had just completed; PyTorch does \
             not look there again before it gives up."
        ),
        OomCause::PoolWithoutRelease => format!(
            "{} of cached segments were free as a whole, but were not released for the {size} at {site}, as happens \
             inside of torch.cuda.use_mem_pool.",
            ByteSize(free.releasable_bytes)
        ),
        OomCause::PrivatePool => format!(
            "{} was free, but in private pools (a CUDA graph or torch.cuda.MemPool), which the {size} at \
             {site} cannot use.",
            ByteSize(free.private_bytes)
        ),
        OomCause::OtherStream => format!(
            "A block of {} was free, but for another stream, so the {size} at {site} could not use it.",
            ByteSize(free.other_stream_largest_bytes)
        ),
        OomCause::Leak => format!(
            "Memory grew from step to step, by {} in all, until {limit} was full; it is requested by {}.",
            ByteSize(grown_bytes),
            oom.site
        ),
        OomCause::Fragmentation => {
            let pins = oom.pinning.as_ref().map_or_else(String::new, |pinning| {
                let blocks = Count(pinning.blocks.len() as u64).of("block", "blocks");
                format!("; {blocks} of {} in all keep a range of that size apart", ByteSize(pinning.live_bytes))
            });
            format!(
                "{} was free for the {size} at {site}, but the largest free block was {}{pins}.",
                ByteSize(free.own_bytes),
                ByteSize(free.own_largest_bytes)
            )
        }
        OomCause::Parameters => format!(
            "The parameters do not fit: {} was allocated, almost nothing of it freed, when {size} at {site} did not \
             fit in {limit}.",
            ByteSize(oom.active_bytes())
        ),
        OomCause::OptimizerState => format!(
            "The optimizer's state, which its first step creates, did not fit in {limit}: {size} at {site} failed \
             with {} allocated.",
            ByteSize(oom.active_bytes())
        ),
        OomCause::Temporary => format!(
            "One temporary is too large: {size} at {site}, beside {} allocated, did not fit in {limit}.",
            ByteSize(oom.active_bytes())
        ),
        OomCause::Activations => format!(
            "The activations of the step did not fit: {size} at {site} failed in {limit} with {} of activations \
             among {} allocated.",
            ByteSize(oom.category_bytes(Category::Activation)),
            ByteSize(oom.active_bytes())
        ),
        OomCause::OverCap | OomCause::DeviceFull => {
            format!("{size} at {site} did not fit in {limit} beside {} allocated.", ByteSize(oom.active_bytes()))
        }
    }
}
