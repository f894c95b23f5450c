//! Real training whose every tensor lives in the pool.
//!
//! A multi-layer perceptron learns to read digits that are drawn on the spot. Batches differ in size from step to step, as they do
//! in real training, so that the pool's segments fragment; weights, gradients, the optimizer's state, activations and inputs are
//! told apart by their category, layers by their scope, steps by marks.
//!
//! This crate prints nothing and serves nothing: [`run`] trains and tells its caller of every step. The `vramscope` command does the
//! rest.
#![forbid(unsafe_code)]

mod adam;
mod data;
mod digits;
mod matrix;
mod network;
mod random;
mod train;

pub use train::{DemoError, Options, Step, Summary, run};
