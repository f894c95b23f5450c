//! The hub: keeps the newest part of a live recording in memory for any number of viewers.
//!
//! A [`Viewer`] is a read position in the history. It has no queue, so a slow viewer costs nothing
//! and does not delay others. A viewer [begins](ViewFrom) at the newest full state or earlier. One
//! that falls too far behind continues at the newest full state; one that was disconnected
//! [resumes](Hub::resume) where it stopped. Definitions are never skipped, so what a viewer
//! receives is always a valid recording, with gaps where it missed events.
//!
//! When the history exceeds its limit, the oldest chunks up to a full state are dropped.

mod chunk_count;
mod file_reader;
mod file_sync;
mod history;
#[cfg(feature = "server")]
mod history_view;
mod position;
mod state;
mod viewer;

#[cfg(feature = "server")]
pub(crate) use history_view::HistoryView;
pub use position::{InvalidPosition, RecordingIdentity, StreamPosition, ViewFrom};
pub use state::{FiguresWatch, Hub, HubLimits};
pub use viewer::{Viewer, ViewerChunks};

#[cfg(test)]
mod model;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
