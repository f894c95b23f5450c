//! The live bytes of every site at one moment, and how sites and frames are named for users.

use std::collections::HashMap;

use crate::device_state::DeviceState;
use crate::site::{Category, Definitions, Frame, SiteId, StackId};

/// The text shown for a site that has no scope, no stack and no category.
const UNKNOWN_SITE: &str = "no line recorded";
/// Parts of the paths of files that belong to libraries. Files elsewhere belong to the recorded
/// program.
///
/// Entries that begin with `/torch/` match a PyTorch that was built from its sources and is not in
/// `site-packages`; `torchinductor_` is the folder of the code that `torch.compile` generates.
const LIBRARY_DIRECTORIES: [&str; 13] = [
    "site-packages/",
    "dist-packages/",
    "lib/python",
    ".cargo/registry/",
    "rustlib/",
    "/rustc/",
    "/torch/nn/",
    "/torch/optim/",
    "/torch/autograd/",
    "/torch/utils/",
    "/torch/distributed/",
    "/torch/_",
    "torchinductor_",
];
/// Beginnings of the names of C++ functions that are the innermost frames of every stack and are
/// not shown: unwinding and the allocator itself.
const ALLOCATOR_FUNCTIONS: [&str; 4] =
    ["torch::unwind::", "torch::CapturedTraceback::", "torch::cuda::", "c10::cuda::CUDACachingAllocator::"];

/// Text that is part of the names of all C++ functions that run operations of a backward pass.
const BACKWARD_FUNCTIONS: &str = "autograd::generated::";
/// Files of Python's library that threads, decorators and scripts run in; they may be shown without
/// their directory, or be in one that does not name Python, as on Windows.
const RUNTIME_FILES: [&str; 4] = ["threading.py", "contextlib.py", "runpy.py", "functools.py"];
/// Parts of the paths of C and C++ files that belong to a runtime or to PyTorch: the C and C++
/// libraries, the interpreter, and PyTorch's sources as its builds record them.
const NATIVE_LIBRARY_DIRECTORIES: [&str; 15] = [
    "libstdc++",
    "/c++/",
    "/nptl/",
    "/sysdeps/",
    "/csu/",
    "/glibc",
    "/usr/include/",
    "/Python/",
    "/Objects/",
    "/aten/src/",
    "/ATen/",
    "/c10/",
    "/torch/csrc/",
    "/torch/include/",
    "/third_party/",
];
/// Beginnings of the names of C++ functions of PyTorch.
const LIBRARY_FUNCTIONS: [&str; 3] = ["at::", "c10::", "torch::"];
/// Beginnings of the names of functions of the interpreter and the C++ library.
const RUNTIME_FUNCTIONS: [&str; 5] = ["_Py", "PyEval", "PyObject", "PyRun", "std::"];
/// Names of the functions in which threads and processes begin.
const THREAD_FUNCTIONS: [&str; 6] =
    ["execute_native_thread_routine", "start_thread", "clone", "clone3", "__clone", "__libc_start_main"];
/// Beginnings of the names of files whose code the user typed: a cell of a notebook, and the
/// standard input. They are no paths.
const TYPED_CODE: [&str; 3] = ["<ipython-input", "<command-", "<stdin>"];
/// The name of code that Python got as text: `python -c`, or what a library generates.
const TEXT_CODE: &str = "<string>";
/// Names of the functions that a decorator puts in place of another function.
const DECORATOR_FUNCTIONS: [&str; 6] = ["wrapper", "wrapped", "_wrapper", "_wrapped", "wrap", "decorated"];

/// The owner of the code that a stack frame runs: the program, a library, or the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrameOrigin {
    /// The recorded program's own code.
    Own,
    /// A library's: PyTorch, the Python standard library, an installed package, the C runtime.
    Library,
    /// The allocator's, or the code that recorded the stack.
    Allocator,
}

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

/// Returns a C++ function's name without its argument types; other names unchanged.
#[must_use]
pub fn short_function_name(function: &str) -> &str {
    // "(anonymous namespace)" follows a colon; it does not begin the arguments.
    let begins = |&(at, _): &(usize, &str)| at > 0 && !function[..at].ends_with([':', ' ']);
    let begin = function.match_indices('(').find(begins).filter(|_| function.contains("::"));
    begin.map_or(function, |(at, _)| &function[..at])
}

/// Returns a path's last component: the file's name without its directory.
#[must_use]
pub fn short_file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Returns a stack frame as one line, for example `train.py:66 gpt_step`.
///
/// If `short` is true, the file is shown without its directory and a C++ function without its
/// argument types; if false, both are shown completely.
#[must_use]
pub fn frame_name(definitions: &Definitions, frame: Frame, short: bool) -> String {
    let (function, path) = (definitions.string(frame.function), definitions.string(frame.file));
    let (function, file) =
        if short { (short_function_name(function), short_file_name(path)) } else { (function, path) };
    // Frames of programs other than Python's may have no function.
    let separator = if function.is_empty() { "" } else { " " };
    match (file, frame.line) {
        ("" | "??", _) => function.to_owned(),
        (file, 0) => format!("{file}{separator}{function}"),
        (file, line) => format!("{file}:{line}{separator}{function}"),
    }
}

/// Returns true if a frame runs Python code.
#[must_use]
pub fn is_python_frame(definitions: &Definitions, frame: Frame) -> bool {
    let path = definitions.string(frame.file);
    path.ends_with(".py") || path == TEXT_CODE || TYPED_CODE.iter().any(|typed| path.starts_with(typed))
}

/// Returns true if a frame is the C++ function that runs one operation of a backward pass, for
/// example `torch::autograd::generated::MmBackward0::apply`.
#[must_use]
pub fn is_backward_operation(definitions: &Definitions, frame: Frame) -> bool {
    backward_node(definitions.string(frame.function)).is_some()
}

/// Returns the name of the node of the backward pass that a C++ function runs: `MmBackward0` for
/// `torch::autograd::generated::MmBackward0::apply`. `None` for other functions.
#[must_use]
pub fn backward_node(function: &str) -> Option<&str> {
    let (_, rest) = function.split_once(BACKWARD_FUNCTIONS)?;
    let end = rest.find("::apply").or_else(|| rest.find("_apply_functional"))?;
    Some(&rest[..end])
}

/// Returns the owner of the code that a frame runs, judged by its file's path and its function's
/// name.
///
/// `in_python_stack` tells whether any frame of its stack runs Python code. If so, only Python
/// frames can be the program's own: the others belong to the interpreter and to libraries.
#[must_use]
pub fn frame_origin(definitions: &Definitions, frame: Frame, in_python_stack: bool) -> FrameOrigin {
    let (function, path) = (definitions.string(frame.function), definitions.string(frame.file));
    let is_python = is_python_frame(definitions, frame);
    if !is_python && ALLOCATOR_FUNCTIONS.iter().any(|part| function.starts_with(part)) {
        return FrameOrigin::Allocator;
    }
    let in_own_file = || {
        if path.starts_with('<') {
            // Libraries generate methods such as `__init__`.
            return path != TEXT_CODE || !function.starts_with('_');
        }
        let in_no_library = |path: &str| !LIBRARY_DIRECTORIES.iter().any(|library| path.contains(library));
        if path.contains('\\') { in_no_library(&path.replace('\\', "/")) } else { in_no_library(path) }
    };
    let is_of_native_library = || {
        LIBRARY_FUNCTIONS.iter().any(|part| function.starts_with(part))
            || NATIVE_LIBRARY_DIRECTORIES.iter().any(|library| path.contains(library))
    };
    let is_of_runtime = || is_runtime(definitions, frame) || !is_python && is_of_native_library();
    let can_be_own = is_python || !in_python_stack && path.contains(['/', '\\']);
    if can_be_own && in_own_file() && !is_of_runtime() { FrameOrigin::Own } else { FrameOrigin::Library }
}

/// Returns true if a frame belongs to a runtime, which says nothing about the program: threads,
/// decorators of Python's library, the interpreter's and the C++ library's own functions.
#[must_use]
pub fn is_runtime(definitions: &Definitions, frame: Frame) -> bool {
    let (function, path) = (definitions.string(frame.function), definitions.string(frame.file));
    if is_python_frame(definitions, frame) {
        return RUNTIME_FILES.contains(&short_file_name(path));
    }
    RUNTIME_FUNCTIONS.iter().any(|part| function.starts_with(part)) || THREAD_FUNCTIONS.contains(&function)
}

/// Returns true if a frame runs the function that a decorator put in place of another one, such as
/// `wrapper`. It only calls that function, so a line of its caller says more.
#[must_use]
pub fn is_decorator(definitions: &Definitions, frame: Frame) -> bool {
    let function = definitions.string(frame.function);
    DECORATOR_FUNCTIONS.contains(&function.rsplit('.').next().unwrap_or(function))
}

/// Returns true if a function's name says little without its file, such as the methods that all
/// modules and optimizers have.
fn is_generic(function: &str) -> bool {
    function.starts_with(['_', '<']) || matches!(function, "forward" | "backward" | "step" | "wrapper" | "apply")
}

/// Returns a call stack as one line, or `None` for a stack without a frame to show.
///
/// The innermost frame of the program's own code comes first, then the innermost Python frame that
/// it called into (for a stack without Python frames, the innermost frame outside of the
/// allocator). For example: `train.py:65 · cross_entropy`, `train.py:66 · adam.py:182 _init_group`.
/// If both are one frame, or the program has no frame of its own in the stack, one frame is shown,
/// for example `train.py:65 gpt_step`.
#[must_use]
pub fn stack_name(definitions: &Definitions, stack: StackId) -> Option<String> {
    let has_python = definitions.stack(stack).any(|frame| is_python_frame(definitions, frame));
    let origin = |frame: &Frame| frame_origin(definitions, *frame, has_python);
    let shown = |frame: &Frame| {
        if has_python { is_python_frame(definitions, *frame) } else { origin(frame) != FrameOrigin::Allocator }
    };
    let innermost = definitions.stack(stack).find(shown)?;
    // A backward pass runs on separate threads without Python frames; the operation is the most
    // informative frame there.
    let is_backward = |frame: &Frame| !has_python && is_backward_operation(definitions, *frame);
    let is_own = |frame: &Frame| shown(frame) && (origin(frame) == FrameOrigin::Own || is_backward(frame));
    let named = definitions.stack(stack).find(|frame| is_own(frame) && !is_decorator(definitions, *frame));
    let own = named.or_else(|| definitions.stack(stack).find(is_own));
    let node = backward_node(definitions.string(innermost.function)).filter(|_| !has_python);
    let called = node.map_or_else(|| frame_name(definitions, innermost, true), str::to_owned);
    let Some(own) = own.filter(|&own| own != innermost) else { return Some(called) };
    let function = short_function_name(definitions.string(innermost.function));
    let called = if function.is_empty() || is_generic(function) { &*called } else { function };
    if let Some(node) = backward_node(definitions.string(own.function)).filter(|_| !has_python) {
        return Some(format!("{node} · {called}"));
    }
    let own = match (short_file_name(definitions.string(own.file)), own.line) {
        (file, line) if line > 0 && !matches!(file, "" | "??") => format!("{file}:{line}"),
        _ => frame_name(definitions, own, true),
    };
    Some(format!("{own} · {called}"))
}

/// Returns a site as one line: scope, frames (see [`stack_name`]) and category. A site without any
/// of these is `no line recorded`.
#[must_use]
pub fn site_name(definitions: &Definitions, id: SiteId) -> String {
    let site = definitions.site(id);
    let mut parts = Vec::new();
    let scope = definitions.string(site.scope);
    if !scope.is_empty() {
        parts.push(scope.to_owned());
    }
    parts.extend(stack_name(definitions, site.stack));
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
    use crate::site::{Interner, Site};

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
        check("", unknown, &[], "no line recorded");
        check("step/forward", unknown, &[], "step/forward");
        check("step", Category::Gradient, &[("src/net.rs", 7, "net::run")], "step · net.rs:7 net::run · gradient");
        let main = ("train.py", 151, "<module>");
        check("", unknown, &[main], "train.py:151 <module>");
        let adam = ("/usr/lib/site-packages/torch/optim/adam.py", 182, "_init_group");
        check("", unknown, &[main, adam], "train.py:151 · adam.py:182 _init_group");
        let functional = ("/usr/lib/site-packages/torch/nn/functional.py", 3462, "cross_entropy");
        check("", unknown, &[main, functional, ("??", 0, "at::log_softmax")], "train.py:151 · cross_entropy");
        check("", unknown, &[main, ("", 0, "at::empty")], "train.py:151 <module>");
        check("", unknown, &[("??", 0, "outer"), ("", 0, "at::empty")], "at::empty");
        let frames = [("", 0, "torch::autograd::generated::MmBackward0::apply(X&&)"), ("", 0, "at::empty(long)")];
        check("", unknown, &frames, "MmBackward0 · at::empty");
        let frames = [
            ("??", 0, "at::(anonymous namespace)::mm(at::Tensor const&)"),
            ("CUDACachingAllocator.cpp", 0, "c10::cuda::CUDACachingAllocator::Native::allocate(unsigned long)"),
            ("??", 0, "torch::unwind::unwind()"),
        ];
        check("", unknown, &frames, "at::(anonymous namespace)::mm");
        check("", unknown, &[("<string>", 1, "f"), adam], "<string>:1 · adam.py:182 _init_group");
        check("", unknown, &[main, ("<string>", 3, "__init__"), adam], "train.py:151 · adam.py:182 _init_group");
        check("", unknown, &[("<stdin>", 5, "train"), adam], "<stdin>:5 · adam.py:182 _init_group");
        check(
            "",
            unknown,
            &[main, ("timing.py", 9, "timed.<locals>.wrapper")],
            "train.py:151 · timed.<locals>.wrapper",
        );
        check("", unknown, &[("C:\\Python312\\Lib\\threading.py", 1073, "run")], "threading.py:1073 run");
        let thread = ("../../../../../src/libstdc++-v3/src/c++11/thread.cc", 82, "execute_native_thread_routine");
        check("", unknown, &[thread, ("??", 0, "at::native::mm")], "at::native::mm");
        check(
            "",
            unknown,
            &[("/home/me/net.cpp", 7, "net::run"), ("/pytorch/aten/src/ATen/mm.cpp", 8, "mm")],
            "net.cpp:7 · mm",
        );
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
