//! The interface between pushing and the connection to the server.

use std::sync::Arc;
use std::time::Duration;

use vramscope_trace::Chunk;

use crate::hub::ViewFrom;
use crate::process::Process;

/// Consecutive chunks of a recording, as a [`Transport`] sends them.
#[derive(Clone, Copy, Debug)]
pub struct PushMessage<'a> {
    /// The chunks; at least one.
    pub chunks: &'a [Arc<Chunk>],
    /// The number of the chunk after them.
    pub next: u64,
    /// Events that are missing before them, because the connection was too slow.
    pub missed_events: u64,
    /// True if the chunks begin with the header and all definitions, so that a receiver needs no
    /// earlier chunks.
    pub is_start: bool,
}

/// The chunks that a [`Transport`] wants next: the following ones, a start, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// The chunks that follow those sent.
    #[default]
    Next,
    /// The header, all definitions, the newest full state among the chunks already sent, and all
    /// chunks after it, so that a new receiver can begin there.
    Start,
    /// Nothing for now.
    Nothing,
}

/// A connection that carries a process's recording to a server.
///
/// Every call blocks for a few seconds at most. After an error, [`connect`](Self::connect) must be
/// called again. Errors are texts that say why the connection failed, without secrets.
pub trait Transport: Send {
    /// Connects and sends the description of this process. Returns the number of the first chunk
    /// that the server lacks; 0 if it has none.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses the process.
    fn connect(&mut self, process: &Process) -> Result<u64, String>;
    /// Sends the chunks of one message. The server acknowledges the message as a whole.
    ///
    /// # Errors
    /// If the connection is lost.
    fn send(&mut self, message: PushMessage<'_>) -> Result<(), String>;
    /// Waits for the next acknowledgement and returns its chunk number: the server has all chunks
    /// before it. Returns `None` if no acknowledgement arrives within `timeout`.
    ///
    /// # Errors
    /// If the connection is lost or the server refused chunks.
    fn receive(&mut self, timeout: Duration) -> Result<Option<u64>, String>;
    /// Tells the server that the recording is complete, after its last chunk was acknowledged.
    ///
    /// # Errors
    /// If the connection is lost.
    fn finish(&mut self) -> Result<(), String>;
    /// Closes the connection. Does nothing if it is not open.
    fn close(&mut self);

    /// Returns where in the recording pushing begins if the server has no chunk of it yet, and
    /// where it continues after [`Demand::Nothing`].
    fn begin(&self) -> ViewFrom {
        ViewFrom::Oldest
    }

    /// Returns which chunks the transport wants next. The pushing thread calls this before every
    /// message; after [`Demand::Start`], when the header and definitions have been sent.
    fn demand(&mut self) -> Demand {
        Demand::Next
    }
}
