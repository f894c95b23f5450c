//! PyTorch's memory snapshots.
//!
//! [`pickle`] and [`json`] read a file into the rows of a [`snapshot`], both by way of the [`builder`]; [`rebuild`] makes events of them.

pub(crate) mod annotations;
mod builder;
pub(crate) mod json;
mod key;
pub(crate) mod pickle;
pub(crate) mod rebuild;
mod scalar;
mod settings;
pub(crate) mod snapshot;
