//! The requests of the page.

use serde::Deserialize;

/// A computation over the recording, in JSON an object whose `kind` names it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Request {
    /// The recorded requests of a device under other settings: figures, and the simulated run as a
    /// recording.
    WhatIf {
        /// The device.
        device: u16,
        /// The settings to try; `None` for the recorded figures alone.
        alloc_conf: Option<String>,
        /// Maximum bytes that the allocator may reserve; `None` for the recorded limit.
        capacity_bytes: Option<u64>,
    },
    /// All settings worth trying on a device, ranked.
    Advice {
        /// The device.
        device: u16,
        /// Maximum bytes that the allocator may reserve; `None` for the recorded limit.
        capacity_bytes: Option<u64>,
    },
    /// The problems that the recording shows.
    Findings,
    /// The recording as a pickled PyTorch snapshot.
    Snapshot,
    /// A part of the recording, as a recording.
    Excerpt {
        /// The first moment, as an event number.
        from: u64,
        /// The last moment.
        to: u64,
        /// Whether placeholders replace the names.
        is_redacted: bool,
    },
}

/// Receives the bytes of a file that a request makes, and how far it is.
pub trait Observer {
    /// Receives the next bytes of the file; of a recording, complete chunks.
    fn part(&mut self, bytes: Vec<u8>);
    /// Receives the share that is done, 0 to 1, and what is being done.
    fn progress(&mut self, share: f64, text: &str);
}
