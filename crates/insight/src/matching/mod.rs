//! Matches the sites of two recordings, although code has changed between them.
//!
//! [`MatchedSites`] numbers the sites of both. `code_map` matches the files, functions and lines of
//! two versions of the code, within a budget of steps; the remaining sites are compared ever less
//! strictly, see [`shared_site_numbers`].

mod budget;
mod code_map;
mod matched_sites;
mod requested_churn;

pub use matched_sites::MatchedSites;
pub(crate) use requested_churn::{RequestedChurn, churn_by_site};

#[cfg(doc)]
use vramscope_trace::shared_site_numbers;
