//! Which sites of one recording are which of another, although code has changed between them.
//!
//! [`MatchedSites`] numbers the sites of both. `code_map` finds out which files, functions and
//! lines of one version are which of the other, within a budget of steps; sites that still lack a
//! match are compared ever less strictly, see [`shared_site_numbers`].

mod budget;
mod code_map;
mod matched_sites;
mod requested_churn;

pub use matched_sites::MatchedSites;
pub(crate) use requested_churn::{RequestedChurn, churn_by_site};

#[cfg(doc)]
use vramscope_trace::shared_site_numbers;
