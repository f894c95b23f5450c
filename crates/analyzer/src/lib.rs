//! Long computations over a whole recording, which the page makes in a worker: the recorded
//! requests under other settings, the best settings, findings, excerpts and snapshots.
//!
//! [`Analyzer`] answers [`Request`]s. The analyses themselves are those of [`vramscope_insight`]
//! and [`vramscope_pool`]; this crate makes the runs, reports progress and returns the results as
//! JSON with the fields of the commands' `--json` output.
//!
//! Compiled for WebAssembly, the crate is a module of its own that the page loads when it is
//! needed: opening a recording transfers none of it, and its memory is free again when the worker
//! ends.
#![forbid(unsafe_code)]

mod advice;
mod analyzer;
mod error;
mod excerpt;
mod findings;
mod request;
mod simulation;
mod snapshot;
#[cfg(target_arch = "wasm32")]
mod worker;

pub use analyzer::Analyzer;
pub use error::AnalysisError;
pub use excerpt::{ExcerptJob, ExcerptStep};
pub use request::{Observer, Request};
#[cfg(target_arch = "wasm32")]
pub use worker::{RecordingAnalyzer, open_recording};
