//! Reads PyTorch's memory snapshots.
//!
//! [`pickle`] and [`json`] parse a file and pass its fields to the [`builder`], which produces the
//! rows of a [`snapshot`]. [`rebuild`] derives events from the rows; [`live`] derives them while
//! the program runs.

pub(crate) mod annotations;
mod builder;
pub(crate) mod json;
mod key;
pub(crate) mod live;
pub(crate) mod paged_list;
pub(crate) mod pickle;
pub(crate) mod rebuild;
mod scalar;
mod settings;
pub(crate) mod snapshot;
