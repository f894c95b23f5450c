//! Perfetto traces, TensorBoard event files and tables. What their own tools make of them, `cargo xtask test` looks at.

#![cfg(feature = "export")]

mod common;
mod perfetto;
mod tables;
mod tensorboard;
