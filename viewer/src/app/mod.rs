//! A user's session with the page: the open recordings, the panes, input and drawing.
//!
//! A [`Session`] receives [`FrameRequest`](crate::protocol::FrameRequest)s with what the user did,
//! and returns [`PageUpdate`](crate::protocol::PageUpdate)s with what has changed. It runs natively
//! too; in a browser, a web worker owns it.

mod allocations;
mod analysis;
mod commands;
mod comparing;
mod core;
mod details;
mod event_steps;
mod heatmap;
mod heatmap_pointer;
mod jobs;
mod links;
mod pane;
mod panes;
mod parts;
mod picture_pointer;
mod pictures;
mod pointer;
mod rows;
mod saving;
mod state;
mod timeline;
mod timeline_commands;
mod timeline_page;
mod timeline_pointer;
mod view_history;

pub use core::{Session, SessionReport};
pub use panes::Panes;
pub use parts::{ConnectionFacts, PageFacts};
