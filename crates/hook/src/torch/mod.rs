//! What is known of PyTorch's CUDA caching allocator: the layout of its trace entries in each
//! version, and how a tracker is attached to it.

mod attach;
mod autograd;
mod entry;
mod function;
pub(crate) mod layouts;
mod library;

pub(crate) use attach::{AttachError, attach};
pub(crate) use autograd::Autograd;
pub(crate) use entry::{EntryReader, TraceEntry, actions, is_request};
pub(crate) use layouts::{TorchLayout, layout_of};
