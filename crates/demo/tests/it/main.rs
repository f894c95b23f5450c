//! Tests of training, tensors and techniques on the host.

#![allow(missing_docs)]

mod arguments;
mod effects;
mod optimizers;
mod page;
mod plans;
mod recorded;
mod training;
