//! A user's session with the page: it schedules the views.
//!
//! A [`Session`] receives [`FrameRequest`](crate::protocol::FrameRequest)s with what the user did,
//! and returns [`PageUpdate`](crate::protocol::PageUpdate)s with what has changed. It knows panes,
//! moment, selection, history of views and frames; what a pane shows is a
//! [`View`](crate::view::View) that it calls. It runs natively too; in a browser, a web worker owns
//! it.

mod analysis;
mod commands;
mod details;
mod display;
mod input;
mod jobs;
mod links;
mod owners;
mod pane_contents;
mod panes;
mod parts;
mod pictures;
mod pointer;
mod rows;
mod saving;
mod selection;
mod session;
mod state;
mod timeline;
mod timeline_commands;
mod timeline_page;
mod timeline_pointer;
mod verdict;
mod view_history;

pub use panes::Panes;
pub use parts::{ConnectionFacts, PageFacts};
pub use session::{Session, SessionReport};
