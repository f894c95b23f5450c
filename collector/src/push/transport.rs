//! The interface between pushing and the connection to the server.

use std::sync::Arc;
use std::time::Duration;

use vramscope_trace::Chunk;

use crate::process::Process;
use crate::push_protocol::PushNote;

/// A connection that carries a recording to a server.
///
/// Every call blocks for a few seconds at most. After an error, [`connect`](Self::connect) must be
/// called again.
pub(super) trait Transport: Send {
    /// Connects and sends the description of this process. Returns the number of the first chunk
    /// that the server lacks.
    fn connect(&mut self, process: &Process) -> Result<u64, String>;
    /// Sends `note`, then `chunks` as one binary message. If `chunks` is empty, sends the note
    /// only.
    fn send(&mut self, note: PushNote, chunks: &[Arc<Chunk>]) -> Result<(), String>;
    /// Waits for the next acknowledgement and returns its chunk number: the server has all chunks
    /// before it. Returns `None` if no acknowledgement arrives within `timeout`.
    fn receive(&mut self, timeout: Duration) -> Result<Option<u64>, String>;
    /// Closes the connection. Does nothing if it is not open.
    fn close(&mut self);
}
