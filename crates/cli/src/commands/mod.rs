//! One module for each command.

pub(crate) mod advise;
pub(crate) mod attach;
pub(crate) mod autopsy;
#[cfg(feature = "manual")]
pub(crate) mod completions;
#[cfg(feature = "demo")]
pub(crate) mod demo;
pub(crate) mod detach;
pub(crate) mod diff;
#[cfg(feature = "export")]
pub(crate) mod export;
pub(crate) mod import;
pub(crate) mod info;
#[cfg(feature = "manual")]
pub(crate) mod man;
pub(crate) mod pack;
pub(crate) mod record;
#[cfg(feature = "report")]
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod table;
pub(crate) mod verify;
pub(crate) mod view;
