//! Properties of a request that follow from its call stack, computed once for each distinct stack.
//!
//! Stacks are linked lists that share their outer frames. The facts of a stack follow from its
//! innermost frame and the facts of its caller, so each stack takes one step.

use std::collections::HashMap;

use vramscope_trace::{
    Definitions, Frame, FrameId, FrameOrigin, SiteId, StackId, frame_origin, is_backward_operation, is_decorator,
    is_python_frame,
};

use super::operation::{OperationSource, is_native_name, native_source, python_source, unqualified};

/// The part of training that PyTorch itself runs on behalf of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnginePhase {
    /// Autograd's backward pass.
    Backward,
    /// An optimizer's step.
    Optimizer,
}

/// A property of a frame from which the purpose of the memory is inferred. A stack has the marks of
/// all its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameMark {
    /// Runs a module's forward pass: `Module._call_impl`, or a function of
    /// `torch/nn/functional.py`.
    Forward = 1,
    /// Creates an optimizer's state: `_init_group`, or the momentum of SGD.
    OptimizerState = 2,
    /// Creates, moves or converts parameters: `Module._apply`, or `__init__` of a module.
    Parameter = 4,
    /// Loads data: `torch/utils/data`.
    DataLoader = 8,
    /// Calls autograd's engine: `Tensor.backward`, `torch.autograd.backward` or `grad`.
    BackwardCall = 16,
    /// Requests scratch memory of cuBLAS.
    Workspace = 32,
    /// Repeats a forward pass in the backward pass: `torch/utils/checkpoint.py`.
    Checkpoint = 64,
    /// Calls a module: `Module._call_impl`.
    ModuleCall = 128,
}

/// The part of PyTorch's distributed training that requests memory itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distributed {
    /// `DistributedDataParallel` (buckets of gradients), and process groups in C++.
    DataParallel,
    /// FSDP: shards of parameters, and what it gathers and reduces.
    Sharding,
}

/// A set of [`FrameMark`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameMarks(u8);

impl FrameMarks {
    /// Adds a mark to the set.
    fn insert(&mut self, mark: FrameMark) {
        self.0 |= mark as u8;
    }

    /// Returns true if the set contains `mark`.
    pub(crate) fn contains(self, mark: FrameMark) -> bool {
        self.0 & mark as u8 != 0
    }
}

/// Properties of a frame that do not depend on the stack that contains it.
#[derive(Clone, Copy, Debug)]
struct FrameFacts {
    is_python: bool,
    /// Whether the frame is of a decorator.
    is_decorator: bool,
    /// The origin in a stack without Python frames.
    native_origin: FrameOrigin,
    is_backward_operation: bool,
    engine: Option<EnginePhase>,
    marks: FrameMarks,
    operation: OperationSource,
    distributed: Option<Distributed>,
    /// Whether the function or the file is named after a cache.
    names_cache: bool,
    /// Whether the frame runs C++ code without a known file.
    is_native: bool,
}

impl FrameFacts {
    /// Computes the properties of a frame.
    fn new(definitions: &Definitions, frame: Frame) -> Self {
        let (function, path) = (definitions.string(frame.function), definitions.string(frame.file));
        let is_python = is_python_frame(definitions, frame);
        let native_origin = frame_origin(definitions, frame, false);
        // Paths of Windows.
        let python_path = if path.contains('\\') { &path.replace('\\', "/") } else { path };
        let (engine, marks, operation) = if is_python {
            let operation = python_source(python_path, native_origin == FrameOrigin::Own);
            (python_engine(function, python_path), python_marks(function, python_path), operation)
        } else {
            (native_engine(function), native_marks(function), native_source(function, path))
        };
        Self {
            is_python,
            is_decorator: is_python && is_decorator(definitions, frame),
            native_origin,
            is_backward_operation: is_backward_operation(definitions, frame),
            engine,
            marks,
            operation,
            distributed: distributed(function, python_path),
            names_cache: is_python && names_cache(unqualified(function), python_path),
            is_native: path == "??" || path.is_empty() && is_native_name(function),
        }
    }
}

/// Returns the phase that a Python frame starts, if it does.
///
/// `torch/autograd/function.py` is no evidence: `Function.apply` runs custom operations in the
/// forward pass, too.
fn python_engine(function: &str, path: &str) -> Option<EnginePhase> {
    let name = unqualified(function);
    let is_optimizer = path.contains("torch/optim/")
        || function.ends_with("Optimizer.step")
        || name == "_init_group"
        || name == "step" && path.contains("optim");
    let is_backward = matches!(name, "backward" | "_make_grads" | "_engine_run_backward")
        || function == "grad" && path.ends_with("torch/autograd/__init__.py");
    match () {
        () if is_optimizer => Some(EnginePhase::Optimizer),
        () if is_backward => Some(EnginePhase::Backward),
        () => None,
    }
}

/// Returns the phase that a C++ frame starts, if it does.
fn native_engine(function: &str) -> Option<EnginePhase> {
    /// Parts of the names of C++ functions that run the backward pass.
    const BACKWARD: [&str; 4] =
        ["autograd::generated::", "autograd::Engine::", "autograd::AccumulateGrad", "autograd::Node::operator()"];
    match () {
        () if BACKWARD.iter().any(|part| function.contains(part)) => Some(EnginePhase::Backward),
        () if function.starts_with("torch::optim::") => Some(EnginePhase::Optimizer),
        () => None,
    }
}

/// Returns the marks of a Python frame.
fn python_marks(function: &str, path: &str) -> FrameMarks {
    let mut marks = FrameMarks::default();
    let function = unqualified(function);
    let is_module_call = matches!(function, "_call_impl" | "_wrapped_call_impl") && path.ends_with("module.py");
    if is_module_call || path.ends_with("torch/nn/functional.py") {
        marks.insert(FrameMark::Forward);
    }
    if is_module_call {
        marks.insert(FrameMark::ModuleCall);
    }
    // SGD creates its momentum in the step itself.
    if matches!(function, "_init_group" | "_multi_tensor_sgd" | "_single_tensor_sgd") {
        marks.insert(FrameMark::OptimizerState);
    }
    let is_module_file = path.contains("torch/nn/modules/");
    if function == "_apply" && path.ends_with("module.py")
        || matches!(function, "__init__" | "reset_parameters") && is_module_file
        || path.ends_with("torch/nn/init.py")
        || path.ends_with("torch/nn/parameter.py")
    {
        marks.insert(FrameMark::Parameter);
    }
    let is_backward_call = matches!(function, "backward" | "grad" | "_make_grads")
        && (path.ends_with("torch/autograd/__init__.py") || path.ends_with("torch/_tensor.py"));
    if is_backward_call {
        marks.insert(FrameMark::BackwardCall);
    }
    if path.contains("torch/utils/data/") {
        marks.insert(FrameMark::DataLoader);
    }
    if path.ends_with("torch/utils/checkpoint.py") {
        marks.insert(FrameMark::Checkpoint);
    }
    marks
}

/// Returns the part of distributed training that a frame belongs to.
fn distributed(function: &str, path: &str) -> Option<Distributed> {
    match () {
        () if path.ends_with("torch/nn/parallel/distributed.py") => Some(Distributed::DataParallel),
        () if function.starts_with("c10d::") => Some(Distributed::DataParallel),
        () if path.contains("torch/distributed/fsdp/") => Some(Distributed::Sharding),
        () => None,
    }
}

/// Returns true if a function or a file is named after a cache of the model's, not one of Python's
/// or the compiler's.
fn names_cache(function: &str, path: &str) -> bool {
    let file = path.rsplit('/').next().unwrap_or(path);
    let is_named = |name: &str| name.to_ascii_lowercase().contains("cache");
    (is_named(function) || is_named(file)) && !path.contains("/torch/") && file != "functools.py"
}

/// Returns the marks of a C++ frame.
fn native_marks(function: &str) -> FrameMarks {
    let mut marks = FrameMarks::default();
    if ["getCurrentCUDABlas", "getCUDABlas", "CUDABlasLtWorkspace"].iter().any(|part| function.contains(part)) {
        marks.insert(FrameMark::Workspace);
    }
    marks
}

/// Returns a frame's number, or `None` for 0.
fn non_zero(frame: FrameId) -> Option<FrameId> {
    Some(frame).filter(|&frame| frame != FrameId(0))
}

/// Properties of a request that follow from its call stack. Frame number 0 means "none".
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StackFacts {
    /// Number of frames; 0 for the empty stack. Saturates.
    pub(crate) frames: u32,
    /// The innermost Python frame.
    innermost_python: FrameId,
    /// The innermost C++ frame outside of the allocator.
    innermost_native: FrameId,
    /// The innermost Python frame of the program's own code; not of a decorator, if there is
    /// another one.
    own_python: FrameId,
    /// Whether `own_python` is not of a decorator.
    is_own_named: bool,
    /// The frame of the program's own code that calls the outermost module.
    model_call: FrameId,
    /// The innermost C++ frame that is the program's own if the stack has no Python frames.
    own_native: FrameId,
    /// The innermost C++ frame that runs one operation of a backward pass.
    backward_operation: FrameId,
    /// The innermost frame whose name is that of an operation that the program recorded.
    named_operation: FrameId,
    /// Whether a frame runs C++ code without a known file: names without a file are then functions
    /// of C, not operations.
    has_native: bool,
    /// The innermost frame of PyTorch's dispatcher; without one, the innermost Python function of
    /// PyTorch or the program that names an operation.
    operation: FrameId,
    operation_source: OperationSource,
    /// The innermost phase that PyTorch runs.
    pub(crate) engine: Option<EnginePhase>,
    /// True if a frame inside that phase runs a forward pass; without a phase, any frame.
    pub(crate) forward_inside: bool,
    /// The marks of all frames.
    pub(crate) marks: FrameMarks,
    /// The part of distributed training that requests the memory: of the innermost Python frame, or
    /// of any C++ frame inside it.
    pub(crate) distributed: Option<Distributed>,
    /// The number of Python frames inside of the innermost one that is named after a cache.
    frames_inside_cache: Option<u8>,
}

impl StackFacts {
    /// Returns true if a frame runs Python code.
    pub(crate) fn has_python(&self) -> bool {
        self.innermost_python != FrameId(0)
    }

    /// Returns true if one of the innermost Python frames is named after a cache.
    pub(crate) fn names_cache(&self) -> bool {
        /// A cache calls a few functions to add to it, but does not run a model.
        const MAX_INSIDE: u8 = 3;
        self.frames_inside_cache.is_some_and(|frames| frames <= MAX_INSIDE)
    }

    /// Returns the innermost frame of the program's own code.
    pub(crate) fn innermost_own(&self) -> Option<FrameId> {
        non_zero(if self.has_python() { self.own_python } else { self.own_native })
    }

    /// Returns the frame of the program's own code that calls the outermost module; `None` outside
    /// of modules.
    pub(crate) fn model_call(&self) -> Option<FrameId> {
        non_zero(self.model_call)
    }

    /// Returns the frame that best identifies the origin of the request: the innermost own frame;
    /// in a backward pass without own frames its operation; or else the innermost frame outside of
    /// the allocator, a Python frame if there is one.
    pub(crate) fn best_frame(&self) -> Option<FrameId> {
        self.innermost_own()
            .or(self.backward_operation())
            .or(non_zero(self.innermost_python))
            .or(non_zero(self.innermost_native))
    }

    /// Returns the innermost C++ frame that runs one operation of a backward pass, if the stack has
    /// no Python frames.
    pub(crate) fn backward_operation(&self) -> Option<FrameId> {
        non_zero(self.backward_operation).filter(|_| !self.has_python())
    }

    /// Returns the frame that names the operation, and how; `None` if no frame does.
    pub(crate) fn operation(&self) -> Option<(FrameId, OperationSource)> {
        match non_zero(self.named_operation).filter(|_| !self.has_native) {
            Some(named) => Some((named, OperationSource::Named)),
            None => Some((non_zero(self.operation)?, self.operation_source)),
        }
    }

    /// Returns the facts of this stack with one more frame, which it calls.
    fn with_frame(mut self, frame: FrameId, facts: FrameFacts) -> Self {
        self.frames = self.frames.saturating_add(1);
        let is_own = facts.native_origin == FrameOrigin::Own;
        if facts.marks.contains(FrameMark::ModuleCall) && !self.marks.contains(FrameMark::ModuleCall) {
            self.model_call = self.own_python;
        }
        if facts.is_python {
            self.innermost_python = frame;
            self.distributed = facts.distributed;
            let inside = self.frames_inside_cache.map(|frames| frames.saturating_add(1));
            self.frames_inside_cache = if facts.names_cache { Some(0) } else { inside };
            if is_own && !(facts.is_decorator && self.is_own_named) {
                (self.own_python, self.is_own_named) = (frame, !facts.is_decorator);
            }
        } else if facts.native_origin != FrameOrigin::Allocator {
            self.innermost_native = frame;
            self.distributed = self.distributed.or(facts.distributed);
            if is_own {
                self.own_native = frame;
            }
        }
        if facts.is_backward_operation {
            self.backward_operation = frame;
        }
        self.has_native |= facts.is_native;
        match facts.operation {
            OperationSource::Named => self.named_operation = frame,
            OperationSource::None => {}
            source if source < OperationSource::Dispatcher && self.operation_source == OperationSource::Dispatcher => {}
            source => (self.operation, self.operation_source) = (frame, source),
        }
        if facts.engine.is_some() {
            self.engine = facts.engine;
            self.forward_inside = false;
        }
        if facts.marks.contains(FrameMark::Forward) {
            self.forward_inside = true;
        }
        self.marks.0 |= facts.marks.0;
        self
    }
}

/// The facts of the stacks looked up so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct FactsCache {
    frames: HashMap<FrameId, FrameFacts>,
    /// By stack number, from 1; `None` where the stack has not been looked up.
    stacks: Vec<Option<StackFacts>>,
    /// Stacks whose facts a lookup has still to compute, innermost first; empty between lookups.
    pending: Vec<(StackId, FrameId)>,
}

impl FactsCache {
    /// Returns how a frame of a stack that was looked up names an operation.
    pub(crate) fn operation_source(&self, frame: FrameId) -> OperationSource {
        self.frames.get(&frame).map_or(OperationSource::None, |facts| facts.operation)
    }

    /// Returns the facts of a stack. Each distinct stack and each of its callers is looked at once.
    pub(crate) fn get(&mut self, definitions: &Definitions, stack: StackId) -> StackFacts {
        let mut next = stack;
        let mut facts = StackFacts::default();
        while let Some(definition) = definitions.stack_definition(next) {
            if let Some(Some(known)) = self.stacks.get(next.0 as usize - 1) {
                facts = *known;
                break;
            }
            self.pending.push((next, definition.frame));
            next = definition.caller;
        }
        while let Some((stack, frame_id)) = self.pending.pop() {
            let of_frame = *self
                .frames
                .entry(frame_id)
                .or_insert_with(|| FrameFacts::new(definitions, definitions.frame(frame_id).unwrap_or_default()));
            facts = facts.with_frame(frame_id, of_frame);
            // The stack is defined, so its number is at least 1 and at most that of all stacks.
            let index = stack.0 as usize - 1;
            if self.stacks.len() <= index {
                self.stacks.resize(index + 1, None);
            }
            self.stacks[index] = Some(facts);
        }
        facts
    }
}

/// Returns the innermost frame of a site's stack that is the program's own code, or `None` if there
/// is none.
#[must_use]
pub fn innermost_own_frame(definitions: &Definitions, site: SiteId) -> Option<Frame> {
    let frame = FactsCache::default().get(definitions, definitions.site(site).stack).innermost_own()?;
    definitions.frame(frame)
}
