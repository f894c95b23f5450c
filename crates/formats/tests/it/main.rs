//! Tests of the crate from outside, in one executable: they share helpers and run side by side.

#[cfg(feature = "export")]
mod export_tools;
#[cfg(feature = "export")]
mod export_torch;
mod lifetimes;
mod metrics;
mod pool_recorded;
mod pool_reports;
mod rmm;
mod torch;
