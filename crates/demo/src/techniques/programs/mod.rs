//! The programs that techniques change.
//!
//! A program runs its steps by [`Run::each_step`](super::run::Run::each_step). It returns its
//! models, data and results, so that they stay allocated until the recording has ended.

pub(super) mod batch_search;
pub(super) mod generation;
pub(super) mod graphs;
pub(super) mod inference;
pub(super) mod loading;
pub(super) mod resnet;
pub(super) mod streams;
pub(super) mod training;
pub(super) mod two_layer;
