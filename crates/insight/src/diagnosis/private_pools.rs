//! Private pools (CUDA graphs, `torch.cuda.MemPool`) whose free memory nothing else can use.

use std::collections::{BTreeMap, BTreeSet};

use vramscope_trace::{Allocation, ByteSize, Category, MempoolId, SiteId};

use super::context::{Context, total_bytes};
use super::finding::{Finding, Problem, is_share};
use super::remedy::{in_default_pool, omitted, one_private_pool};
use crate::autopsy::RecordingLines;
use crate::group::Phase;

/// Minimum free memory of several private pools that counts, in percent of the reserved peak.
const MIN_PERCENT: u64 = 20;
/// Minimum free memory of one private pool that counts, in percent of the reserved peak.
const MIN_IDLE_PERCENT: u64 = 10;
/// Minimum free memory of one private pool that counts, in bytes.
const MIN_IDLE_BYTES: u64 = 32 << 20;

/// Finds private pools that hold memory in vain: one that is no longer used, one whose blocks keep
/// segments from being released, or several whose free memory they do not share.
///
/// Where the end of a recording is all that is known, only the last kind can be found.
pub(super) fn find(context: &Context<'_>, lines: &mut RecordingLines<'_>, has_history: bool) -> Option<Finding> {
    let idle_pools = if has_history { idle_pools(context, lines) } else { Vec::new() };
    idle_pools.iter().find_map(|pool| idle(context, lines, pool)).or_else(|| several(context, lines))
}

/// A private pool that has served no request for long at the end of the steps.
struct IdlePool {
    owner: MempoolId,
    /// Bytes of free memory in its segments, none of which can be released.
    free_bytes: u64,
    /// Bytes of its live blocks, without workspaces of libraries.
    live_bytes: u64,
    /// The first moment at which the pool was as it is then.
    since: u64,
}

/// Returns the private pools with much free memory that have not been used for several steps at the
/// end of the last one, the one with most free memory first.
fn idle_pools(context: &Context<'_>, lines: &RecordingLines<'_>) -> Vec<IdlePool> {
    let Some((end, device)) = context.last_state() else { return Vec::new() };
    let mut pools: BTreeMap<MempoolId, IdlePool> = BTreeMap::new();
    for segment in device.segments().filter(|segment| segment.pool.owner != MempoolId::default()) {
        let owner = segment.pool.owner;
        let pool = pools.entry(owner).or_insert(IdlePool { owner, free_bytes: 0, live_bytes: 0, since: 0 });
        for extent in device.extents(segment) {
            let bytes = if extent.block.is_some() { &mut pool.live_bytes } else { &mut pool.free_bytes };
            *bytes = bytes.saturating_add(extent.size);
        }
    }
    let is_large = |pool: &IdlePool| {
        pool.free_bytes >= MIN_IDLE_BYTES && is_share(pool.free_bytes, MIN_IDLE_PERCENT, context.peak_reserved.bytes)
    };
    pools.retain(|_, pool| is_large(pool));
    if pools.is_empty() {
        return Vec::new();
    }
    for one in context.lifetimes.iter() {
        let Some(pool) = pools.get_mut(&one.pool.owner) else { continue };
        let changes = [Some(one.first_moment), one.active_until].into_iter().flatten();
        pool.since = changes.filter(|moment| *moment <= end).fold(pool.since, u64::max);
        // A library may have got its workspace from the pool by chance, and keeps it.
        if one.is_active_at(end) && lines.category_of(&one) == Category::Workspace {
            pool.live_bytes = pool.live_bytes.saturating_sub(one.size);
        }
    }
    let mut pools: Vec<IdlePool> = pools.into_values().filter(|pool| context.goes_on_after(pool.since)).collect();
    pools.sort_by_key(|pool| std::cmp::Reverse(pool.free_bytes));
    pools
}

/// Returns true if the lines that requested most of a pool's bytes request memory outside of it
/// after the moment `since`: the program runs what it failed to capture. The replay of a graph
/// makes no requests, and results may be written to memory outside of the pool.
fn runs_outside(context: &Context<'_>, lines: &mut RecordingLines<'_>, blocks: &[Allocation], since: u64) -> bool {
    let later =
        context.lifetimes.iter().filter(|one| one.first_moment > since && one.pool.owner == MempoolId::default());
    let outside: BTreeSet<u32> = later.map(|one| lines.group_of_allocation(&one)).collect();
    let again = blocks.iter().filter(|one| outside.contains(&lines.group_of_allocation(one)));
    total_bytes(again) >= total_bytes(blocks) / 2
}

/// Returns true if a pass through a model, or an optimizer's step, requested an allocation.
fn is_of_pass(lines: &RecordingLines<'_>, one: &Allocation) -> bool {
    matches!(lines.phase(one.site), Some(Phase::Forward | Phase::Backward | Phase::Optimizer))
}

/// Returns true for the pool of a CUDA graph that was captured without `pool=`: PyTorch counts such
/// pools in the first part of the id, others in the second.
fn is_pool_of_graph(owner: MempoolId) -> bool {
    matches!(owner, MempoolId(1.., 0))
}

/// Returns the finding about a pool that is no longer used.
fn idle(context: &Context<'_>, lines: &mut RecordingLines<'_>, pool: &IdlePool) -> Option<Finding> {
    let blocks: Vec<Allocation> = context.lifetimes.iter().filter(|one| one.pool.owner == pool.owner).collect();
    let free = ByteSize(pool.free_bytes);
    let end = context.last_state()?.0;
    let freed = || blocks.iter().filter(|one| one.active_until.is_some_and(|until| until <= end)).copied();
    // A CUDA graph needs the free memory of its pool when it is replayed.
    let may_be_of_graph = is_pool_of_graph(pool.owner) || blocks.iter().any(|one| is_of_pass(lines, one));
    let (problem, summary, remedy) = if pool.live_bytes == 0 {
        if may_be_of_graph && !runs_outside(context, lines, &blocks, pool.since) {
            return None;
        }
        let (user, remedy) = match is_pool_of_graph(pool.owner) {
            true => (
                "a CUDA graph whose capture failed, or whose results were dropped, keeps them",
                "Capture only what a graph can hold (no .item(), print or synchronization inside): the pool of a \
                 failed capture is not released.",
            ),
            false => (
                "the pool is kept by a torch.cuda.MemPool, or by a CUDA graph whose capture failed",
                "Delete the pool once its tensors are gone (del pool; torch.cuda.empty_cache()), or allocate them \
                 outside of it.",
            ),
        };
        let summary = format!(
            "{free} stay reserved in a private pool without a live block, and nothing else can use them: {user}."
        );
        (Problem::UnusedPool, summary, remedy)
    } else {
        if may_be_of_graph || freed().next().is_none() {
            return None;
        }
        let summary = format!(
            "{free} are free in a private pool between blocks of {} that stay: its segments cannot be released, and \
             nothing else can use them.",
            ByteSize(pool.live_bytes)
        );
        let remedy = "Load, convert and filter the tensors on the CPU, and copy only the final ones into the pool.";
        (Problem::StrandedBlocks, summary, remedy)
    };
    let freed: Vec<Allocation> = freed().collect();
    // The last temporary may stay allocated as long as a variable of the program has it.
    let mut counts: BTreeMap<SiteId, (usize, usize)> = BTreeMap::new();
    freed.iter().for_each(|one| counts.entry(one.site).or_default().0 += 1);
    blocks.iter().for_each(|one| counts.entry(one.site).or_default().1 += 1);
    let is_temporary = |one: &&Allocation| counts.get(&one.site).is_some_and(|(freed, all)| freed * 10 >= all * 9);
    let requested: Vec<Allocation> = blocks.iter().filter(is_temporary).copied().collect();
    let mut finding = context.finding(lines, problem, pool.free_bytes, &freed, summary);
    finding.events = (pool.since, end);
    if let Some(largest) = freed.iter().max_by_key(|one| one.size).filter(|_| problem == Problem::UnusedPool) {
        // The same function may run inside and outside of the pool.
        finding.site = lines.name_of_request(largest);
    }
    finding.remedy = Some(remedy.to_owned());
    // What a failed capture requests is in vain; what a pool holds for a while is needed elsewhere.
    let is_needed = problem == Problem::UnusedPool && !is_pool_of_graph(pool.owner);
    finding.trials = vec![if is_needed { in_default_pool(context, requested) } else { omitted(context, requested) }];
    Some(finding)
}

/// Finds private pools whose free memory nothing else can use.
fn several(context: &Context<'_>, lines: &RecordingLines<'_>) -> Option<Finding> {
    let device = &context.at_peak_reserved;
    let private = || device.segments().filter(|segment| segment.pool.owner != MempoolId::default());
    let pools: BTreeSet<MempoolId> = private().map(|segment| segment.pool.owner).collect();
    let free = private().flat_map(|segment| device.extents(segment)).filter(|extent| extent.block.is_none());
    let free_bytes: u64 = free.map(|extent| extent.size).sum();
    if pools.len() < 2 || !is_share(free_bytes, MIN_PERCENT, context.peak_reserved.bytes) {
        return None;
    }
    let blocks: Vec<Allocation> = context
        .lifetimes
        .iter()
        .filter(|one| one.first_moment <= context.peak_reserved.event && one.pool.owner != MempoolId::default())
        .collect();
    let summary = format!(
        "{} private pools (CUDA graphs or torch.cuda.MemPool) hold {} of free memory that neither another pool nor the \
         rest of the program can use.",
        pools.len(),
        ByteSize(free_bytes)
    );
    let mut finding = context.finding(lines, Problem::PrivatePools, free_bytes, &blocks, summary);
    finding.events = (context.peak_reserved.event, context.peak_reserved.event);
    finding.remedy = Some(
        "Capture the graphs with one pool, torch.cuda.graph(graph, pool=first_graph.pool()), if they are replayed \
             in the order of capture and never at once; use one torch.cuda.MemPool."
            .to_owned(),
    );
    finding.trials = vec![one_private_pool(context)];
    Some(finding)
}
