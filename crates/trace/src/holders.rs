//! Who holds memory at a moment: live blocks by the site that asked for them, and what a site is called.

use std::collections::HashMap;

use crate::device_state::DeviceState;
use crate::site::{Category, Definitions, Frame, SiteId};

/// What is shown of a site about which nothing is known.
const UNKNOWN: &str = "unknown site";
/// Folders in which a program keeps the code of others. What lies in none of them is the program's own.
const LIBRARIES: [&str; 5] = ["site-packages/", "dist-packages/", "lib/python", ".cargo/registry/", "rustlib/"];
/// What C++ stacks begin with whoever asks: the recording of the stack, and the allocator.
const MACHINERY: [&str; 4] =
    ["torch::unwind::", "torch::CapturedTraceback::", "torch::cuda::", "c10::cuda::CUDACachingAllocator::"];

/// What the C++ functions that go through a backward pass have in their names.
const BACKWARD: &str = "autograd::generated::";

/// The memory that one site holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Where the memory was asked for.
    pub site: SiteId,
    /// Bytes of its blocks, after rounding.
    pub bytes: u64,
    /// Bytes asked for.
    pub requested: u64,
    /// How many blocks.
    pub blocks: u64,
}

/// The allocated blocks of a device by site, the most bytes first. Their bytes add up to the device's allocated bytes: a block that
/// the program has freed and a stream still uses counts no more.
#[must_use]
pub fn holders(device: &DeviceState) -> Vec<Holder> {
    let mut sums: HashMap<SiteId, Holder> = HashMap::new();
    for block in device.blocks().filter(|block| !block.pending_free) {
        let holder = sums.entry(block.site).or_insert(Holder { site: block.site, ..Holder::default() });
        holder.bytes = holder.bytes.saturating_add(block.size);
        holder.requested = holder.requested.saturating_add(block.requested);
        holder.blocks += 1;
    }
    let mut holders: Vec<Holder> = sums.into_values().collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.site));
    holders
}

/// A C++ function without the types of its arguments.
fn without_arguments(function: &str) -> &str {
    // The one of an unnamed namespace stands behind a colon.
    let begins = |&(at, _): &(usize, &str)| at > 0 && !function[..at].ends_with([':', ' ']);
    let begin = function.match_indices('(').find(begins).filter(|_| function.contains("::"));
    begin.map_or(function, |(at, _)| &function[..at])
}

/// A frame in one line: `train.py:66 gpt_step`; where `short`, only with the last part of the file's path, and without the types of a
/// function's arguments.
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

/// A site in one line: its scope, the innermost frame of a script (of anything, where there is no script in the stack), the innermost
/// frame of the program's own where that is another one, and what the memory is for: `adam.py:182 _init_group ← train.py:66 gpt_step`.
#[must_use]
pub fn site_name(definitions: &Definitions, id: SiteId) -> String {
    let site = definitions.site(id);
    let file = |frame: &Frame| definitions.string(frame.file);
    let is_script = |frame: &Frame| file(frame).ends_with(".py");
    let is_own = |frame: &Frame| {
        let path = file(frame).replace('\\', "/");
        (path.contains('/') || is_script(frame))
            && !path.starts_with('<')
            && !LIBRARIES.iter().any(|library| path.contains(library))
    };
    let has_script = definitions.stack(site.stack).any(|frame| is_script(&frame));
    let is_machinery =
        |frame: &Frame| MACHINERY.iter().any(|part| definitions.string(frame.function).starts_with(part));
    let shown = |frame: &Frame| if has_script { is_script(frame) } else { !is_machinery(frame) };
    let innermost = definitions.stack(site.stack).find(shown);
    // A backward pass runs on threads of its own, where no script is on the stack; there it is the operation that says most.
    let is_backward = |frame: &Frame| !has_script && definitions.string(frame.function).contains(BACKWARD);
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
    if parts.is_empty() { UNKNOWN.to_owned() } else { parts.join(" · ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Pool, StreamId};
    use crate::site::{Interner, Site, StackId};
    use crate::state::{Block, Segment};

    /// The name of the site with these frames, `file:line function`, from the outermost in.
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
        for definition in interner.take_fresh() {
            definitions.define(definition);
        }
        assert_eq!(site_name(&definitions, site), expected);
    }

    #[test]
    fn a_site_is_called_by_what_a_person_knows_of_it() {
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
    fn holders_add_up_to_what_is_allocated() {
        let mut device = DeviceState::default();
        let pool = Pool::default();
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
        let holders = holders(&device);
        assert_eq!(holders.iter().map(|holder| holder.bytes).sum::<u64>(), device.counters().allocated);
        assert_eq!(holders[0], Holder { site: SiteId(1), bytes: 0x400, requested: 0x400 - 16, blocks: 2 });
        assert_eq!(holders[1], Holder { site: SiteId(2), bytes: 0x400, requested: 0x400 - 8, blocks: 1 });
    }
}
