//! A real training run whose tensors all live in the pool.
//!
//! A multi-layer perceptron learns to classify generated images of digits. Batch sizes vary from
//! step to step, as in real training, so the pool's segments fragment. Parameters, gradients,
//! optimizer state, activations and inputs have their categories, layers their scopes, and steps
//! their marks.
//!
//! [`run`] trains and calls back after every step. This crate prints nothing and serves nothing;
//! the `vramscope` command does.
#![forbid(unsafe_code)]

mod adam;
mod data;
mod digits;
mod matrix;
mod network;
mod random;
mod train;

pub use train::{DemoError, Options, Step, Summary, run};
