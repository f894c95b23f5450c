//! Reverse-mode differentiation.
//!
//! While gradients are recorded, an operation with an argument that requires a gradient adds a
//! node to its result: what to do in the backward pass, with the tensors that this needs
//! (saved tensors). The nodes form a graph, which lives as long as a tensor computed by it.
//! [`Tensor::backward`](crate::Tensor::backward) runs it once; each node's saved tensors are freed
//! as soon as it has run, as in PyTorch without `retain_graph`.
//!
//! Saved tensors remember the version of their memory. If an in-place operation has changed it
//! since, the backward pass returns an error instead of a wrong gradient.

mod checkpoint;
mod engine;
mod saved;

pub(crate) use crate::gradient_graph::Node;
pub use crate::gradient_mode::{GradMode, enable_grad, is_grad_enabled, no_grad};
pub use checkpoint::checkpoint;
pub(crate) use saved::Saved;
