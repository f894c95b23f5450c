//! The live bytes of every site at one moment, and how sites and frames are named for users.

use std::collections::HashMap;

use crate::device_state::DeviceState;
use crate::site::{Category, Definitions, Frame, SiteId};

/// The text shown for a site that has no scope, no stack and no category.
const UNKNOWN_SITE: &str = "unknown site";
/// Parts of the paths of files that belong to libraries. Files elsewhere belong to the recorded
/// program.
const LIBRARY_DIRECTORIES: [&str; 5] =
    ["site-packages/", "dist-packages/", "lib/python", ".cargo/registry/", "rustlib/"];
/// Beginnings of the names of C++ functions that are the innermost frames of every stack and are
/// not shown: unwinding and the allocator itself.
const ALLOCATOR_FUNCTIONS: [&str; 4] =
    ["torch::unwind::", "torch::CapturedTraceback::", "torch::cuda::", "c10::cuda::CUDACachingAllocator::"];

/// A part of the names of those C++ functions that run a backward pass.
const BACKWARD_FUNCTIONS: &str = "autograd::generated::";

/// The number, bytes and requested bytes of the allocated blocks of one site at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteBytes {
    /// The site.
    pub site: SiteId,
    /// Bytes of its allocated blocks, after rounding.
    pub bytes: u64,
    /// Bytes that the program requested for these blocks.
    pub requested: u64,
    /// Number of these blocks.
    pub blocks: u64,
}

/// Returns the allocated memory of a device by site, largest first.
///
/// The bytes add up to the device's [`allocated`](crate::Counters::allocated) bytes: blocks that
/// are pending free are not counted.
///
/// ```
/// use vramscope_trace::{
///     DeviceId, Event, EventKind, MemoryState, PoolKey, SiteId, StreamId, live_bytes_by_site,
/// };
///
/// let (stream, pool, site) = (StreamId(0), PoolKey::default(), SiteId(7));
/// let mut state = MemoryState::default();
/// for kind in [
///     EventKind::SegmentAllocated { address: 0, size: 2 << 20, stream, pool, site },
///     EventKind::BlockAllocated { address: 0, size: 512, requested: 400, stream, pool, site },
/// ] {
///     state.apply(&Event { device: DeviceId(0), time_ns: 0, kind });
/// }
/// let device = state.device(DeviceId(0)).expect("the events created it");
/// let sites = live_bytes_by_site(device);
/// assert_eq!((sites[0].site, sites[0].bytes), (SiteId(7), 512));
/// ```
#[must_use]
pub fn live_bytes_by_site(device: &DeviceState) -> Vec<SiteBytes> {
    let mut sums: HashMap<SiteId, SiteBytes> = HashMap::new();
    for block in device.blocks().filter(|block| !block.pending_free) {
        let sum = sums.entry(block.site).or_insert(SiteBytes { site: block.site, ..SiteBytes::default() });
        sum.bytes = sum.bytes.saturating_add(block.size);
        sum.requested = sum.requested.saturating_add(block.requested);
        sum.blocks += 1;
    }
    let mut sites: Vec<SiteBytes> = sums.into_values().collect();
    sites.sort_by_key(|one| (std::cmp::Reverse(one.bytes), one.site));
    sites
}

/// Returns a C++ function's name without its argument types.
fn without_arguments(function: &str) -> &str {
    // "(anonymous namespace)" follows a colon; it does not begin the arguments.
    let begins = |&(at, _): &(usize, &str)| at > 0 && !function[..at].ends_with([':', ' ']);
    let begin = function.match_indices('(').find(begins).filter(|_| function.contains("::"));
    begin.map_or(function, |(at, _)| &function[..at])
}

/// Returns a stack frame as one line, for example `train.py:66 gpt_step`.
///
/// If `short` is true, the file is shown without its directory and a C++ function without its
/// argument types; if false, both are shown completely.
#[must_use]
pub fn frame_name(definitions: &Definitions, frame: Frame, short: bool) -> String {
    let (function, path) = (definitions.string(frame.function), definitions.string(frame.file));
    let (function, file) = if short {
        (without_arguments(function), path.rsplit(['/', '\\']).next().unwrap_or(path))
    } else {
        (function, path)
    };
    match (file, frame.line) {
        ("" | "??", _) => function.to_owned(),
        (file, 0) => format!("{file} {function}"),
        (file, line) => format!("{file}:{line} {function}"),
    }
}

/// Returns a site as one line: scope, frames and category.
///
/// Shown are the innermost Python frame (of a stack without Python frames, the innermost frame
/// outside of the allocator), and the innermost frame of the program's own code if that is another:
/// `adam.py:182 _init_group ← train.py:66 gpt_step`. A site without any of these is `unknown site`.
#[must_use]
pub fn site_name(definitions: &Definitions, id: SiteId) -> String {
    let site = definitions.site(id);
    let file = |frame: &Frame| definitions.string(frame.file);
    let is_script = |frame: &Frame| file(frame).ends_with(".py");
    let is_own = |frame: &Frame| {
        let path = file(frame).replace('\\', "/");
        (path.contains('/') || is_script(frame))
            && !path.starts_with('<')
            && !LIBRARY_DIRECTORIES.iter().any(|library| path.contains(library))
    };
    let has_script = definitions.stack(site.stack).any(|frame| is_script(&frame));
    let is_allocator =
        |frame: &Frame| ALLOCATOR_FUNCTIONS.iter().any(|part| definitions.string(frame.function).starts_with(part));
    let shown = |frame: &Frame| if has_script { is_script(frame) } else { !is_allocator(frame) };
    let innermost = definitions.stack(site.stack).find(shown);
    // A backward pass runs on separate threads without Python frames; the operation is the most
    // informative frame there.
    let is_backward = |frame: &Frame| !has_script && definitions.string(frame.function).contains(BACKWARD_FUNCTIONS);
    let own = definitions.stack(site.stack).find(|frame| shown(frame) && (is_own(frame) || is_backward(frame)));
    let mut parts = Vec::new();
    let scope = definitions.string(site.scope);
    if !scope.is_empty() {
        parts.push(scope.to_owned());
    }
    let frames: Vec<String> = [innermost, own.filter(|own| Some(*own) != innermost)]
        .into_iter()
        .flatten()
        .map(|frame| frame_name(definitions, frame, true))
        .collect();
    if !frames.is_empty() {
        parts.push(frames.join(" ← "));
    }
    if site.category != Category::Unknown {
        parts.push(site.category.name().to_owned());
    }
    if parts.is_empty() { UNKNOWN_SITE.to_owned() } else { parts.join(" · ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{PoolKey, StreamId};
    use crate::segment::{Block, Segment};
    use crate::site::{Interner, Site, StackId};

    /// Checks the name of a site with these frames: file, line and function, outermost first.
    #[track_caller]
    fn check(scope: &str, category: Category, frames: &[(&str, u32, &str)], expected: &str) {
        let mut interner = Interner::default();
        let mut stack = StackId(0);
        for &(file, line, function) in frames {
            let (file, function) = (interner.string(file), interner.string(function));
            let frame = interner.frame(Frame { function, file, line });
            stack = interner.stack(frame, stack);
        }
        let scope = interner.string(scope);
        let site = interner.site(Site { stack, scope, category, ..Site::default() });
        let mut definitions = Definitions::default();
        for definition in interner.take_new() {
            definitions.define(definition);
        }
        assert_eq!(site_name(&definitions, site), expected);
    }

    #[test]
    fn site_names_show_the_most_informative_frames() {
        let unknown = Category::Unknown;
        check("", unknown, &[], "unknown site");
        check("step/forward", unknown, &[], "step/forward");
        check("step", Category::Gradient, &[("src/net.rs", 7, "net::run")], "step · net.rs:7 net::run · gradient");
        let main = ("train.py", 151, "<module>");
        check("", unknown, &[main], "train.py:151 <module>");
        let adam = ("/usr/lib/site-packages/torch/optim/adam.py", 182, "_init_group");
        check("", unknown, &[main, adam], "adam.py:182 _init_group ← train.py:151 <module>");
        check("", unknown, &[main, ("", 0, "at::empty")], "train.py:151 <module>");
        check("", unknown, &[("??", 0, "outer"), ("", 0, "at::empty")], "at::empty");
        let frames = [("", 0, "torch::autograd::generated::MmBackward0::apply(X&&)"), ("", 0, "at::empty(long)")];
        check("", unknown, &frames, "at::empty ← torch::autograd::generated::MmBackward0::apply");
        let frames = [
            ("??", 0, "at::(anonymous namespace)::mm(at::Tensor const&)"),
            ("CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::Native::allocate(unsigned long)"),
            ("??", 0, "torch::unwind::unwind()"),
        ];
        check("", unknown, &frames, "at::(anonymous namespace)::mm");
        check("", unknown, &[("<string>", 1, "f"), adam], "adam.py:182 _init_group");
    }

    #[test]
    fn live_bytes_add_up_to_allocated_bytes() {
        let mut device = DeviceState::default();
        let pool = PoolKey::default();
        let (stream, site) = (StreamId(0), SiteId(0));
        device.insert_segment(Segment {
            address: 0x1000,
            size: 0x1000,
            stream,
            pool,
            expandable: false,
            site,
            since_event: 0,
        });
        for (address, size, site, pending_free) in
            [(0x1000, 0x200, 1, false), (0x1200, 0x400, 2, false), (0x1600, 0x200, 1, true), (0x1800, 0x200, 1, false)]
        {
            device.insert_block(Block {
                address,
                size,
                requested: size - 8,
                stream,
                pool,
                site: SiteId(site),
                pending_free,
                since_event: 0,
                since_ns: 0,
            });
        }
        let sites = live_bytes_by_site(&device);
        assert_eq!(sites.iter().map(|one| one.bytes).sum::<u64>(), device.counters().allocated);
        assert_eq!(sites[0], SiteBytes { site: SiteId(1), bytes: 0x400, requested: 0x400 - 16, blocks: 2 });
        assert_eq!(sites[1], SiteBytes { site: SiteId(2), bytes: 0x400, requested: 0x400 - 8, blocks: 1 });
    }
}
