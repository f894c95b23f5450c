//! Groups of allocations: by site, function, line, module, category, phase, operation, stream, pool
//! or size.
//!
//! A [`Grouping`] gives every block a group number. Properties of the site are computed once for
//! each site, so that the group of a block takes two table lookups. Group numbers count from 0 in
//! the order of first use and never change, except where [`Grouping::update`] says so.
//!
//! # Without a stack
//!
//! A request that lacks the property by which blocks are grouped belongs to a group whose name says
//! why, see [`WhyNoStack`]. A block is older than the recording if it exists since the first
//! recorded event or before; a block made by that very event cannot be told from an older one.
//!
//! # Phases
//!
//! The innermost scope named `forward`, `backward` or `optimizer` decides. Without it, the stack
//! does, by the first rule that applies:
//!
//! 1. *Backward*: the innermost frame of PyTorch's engines is one of autograd (a Python function
//!    `backward`, `_make_grads` or `_engine_run_backward`; in C++ `autograd::generated::`,
//!    `autograd::Engine::`, `autograd::Node::operator()` or `autograd::AccumulateGrad`). A forward
//!    pass that is repeated for checkpointed activations is part of the backward pass.
//! 2. *Optimizer*: it is one of an optimizer (a file in `torch/optim/`, or a function `step` in a
//!    file whose path contains `optim`), unless a module is called inside of it (a closure).
//! 3. *Forward*: a module is called (`_call_impl` of `module.py`, or `torch/nn/functional.py`).
//! 4. *Backward*, if the recording has Python stacks and this request has no frames: PyTorch runs
//!    the backward pass on threads of its own, without Python frames.
//! 5. *Other*.
//!
//! # Categories
//!
//! The recorded category counts. Where none was recorded, as in every PyTorch snapshot, it is the
//! one that [`categories`](crate::categories) inferred for the block, and marked as inferred. A
//! grouping knows inferred categories once they were [set](Grouping::set_categories). Blocks newer
//! than the inference have the category of most bytes of their site.
//!
//! # Operations
//!
//! The innermost frame that names an operation decides, of the first kind that the stack has:
//!
//! 1. *Named operations*: frames without a file, which a program records with
//!    `Scope::operation("matmul")`. The name is the operation's. In a stack with C++ functions, a
//!    frame without a file is a C function, not a named operation.
//! 2. *PyTorch's dispatcher*: `at::_ops::add_Tensor::call` and `redispatch` are `aten::add`,
//!    without the name of the overload; the node `torch::autograd::generated::MmBackward0::apply`
//!    is `MmBackward0`. These are the names of PyTorch's profiler.
//! 3. *Python functions*: a function in `torch/nn/functional.py` has its own name, `linear`; one in
//!    another file of `torch/nn` or `torch/optim` is `linear.forward` or `adam._init_group`, or
//!    `Linear.forward` where its class was recorded. Functions that only call modules and
//!    optimizers do not count. A function of the program counts, too, so that `attention (gpt.py)`
//!    is named where it calls PyTorch directly; it is not an operation within which others run.
//! 4. Without any of them, the function that [`GroupBy::Function`] shows.
//!
//! A request of the backward pass may have the stack of its forward operation and a scope
//! `backward`, as recordings of vramscope's hook do. It belongs to `linear backward`.

mod backward_calls;
mod group_by;
mod grouping;
mod groupings;
mod memory_category;
mod merged_sites;
mod model_calls;
mod names;
mod phase;
mod recording_categories;
mod site_keys;
#[cfg(test)]
mod tests;

pub(crate) use backward_calls::{BACKWARD_PASS, BackwardCalls};
pub use group_by::GroupBy;
pub use grouping::Grouping;
pub use groupings::Groupings;
pub use memory_category::{CategorySource, Confidence, KnownCategory, MemoryCategory};
pub use merged_sites::MergedSites;
pub use names::{GroupDetails, pool_name, stream_name};
pub use phase::{Phase, phase_of_site};
pub(crate) use phase::{SiteRequest, phase};
pub use recording_categories::{DeviceCategories, RecordingCategories};

#[cfg(doc)]
use crate::frames::WhyNoStack;
