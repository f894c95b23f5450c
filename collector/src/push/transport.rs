//! How a recording goes to the hub.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vramscope_trace::Chunk;

use crate::process::Process;

/// What is said before chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Note {
    /// The number of the chunk after them.
    pub(crate) next: Option<u64>,
    /// How many events are left out before them.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) missed: u64,
    /// That was all.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) end: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(truth: &bool) -> bool {
    !truth
}

/// What the hub answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Answer {
    /// The number of the first chunk that it has not taken; said once, at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resume: Option<u64>,
    /// Everything before the chunk of this number has been taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) taken: Option<u64>,
}

/// The way to the hub: a WebSocket now; a message broker may be another. All of it waits, and nothing for longer than some seconds.
/// After an error it must be connected again.
pub(crate) trait Transport: Send {
    /// Connects, and says who this is. The answer is the number of the first chunk that the hub has not taken.
    fn connect(&mut self, process: &Process) -> Result<u64, String>;
    /// Sends chunks with what is to be said of them, or what is to be said alone.
    fn send(&mut self, note: Note, chunks: &[Arc<Chunk>]) -> Result<(), String>;
    /// Waits for the next answer. `None`: there was none for so long.
    fn receive(&mut self, wait: Duration) -> Result<Option<u64>, String>;
    /// Says goodbye.
    fn close(&mut self);
}
