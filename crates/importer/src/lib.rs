//! Converts files of other tools to recordings while their bytes arrive.
//!
//! [`ImportJob`] takes the bytes of a file and returns the chunks of a recording. The formats
//! themselves are read by [`vramscope_formats`].
//!
//! Compiled for WebAssembly, the crate is a module of its own that the page loads in a worker when
//! a user opens such a file: opening a recording transfers none of it, and its memory is free again
//! when the worker ends.
#![forbid(unsafe_code)]

mod job;
#[cfg(target_arch = "wasm32")]
mod worker;

pub use job::{ImportError, ImportJob};
#[cfg(target_arch = "wasm32")]
pub use worker::import_file;
