//! Out-of-memory errors: one card per failed request, with the cap that it ran into and why the
//! memory that the allocator had did not help.
//!
//! Also retries: requests that succeeded only after the allocator had released its free segments.

mod cap;
mod card;
mod cause;
mod device_memory;
mod failure;
mod free_elsewhere;
mod headline;
mod retries;

pub use cap::ReservedCap;
pub use card::{FailureCard, Failures};
pub use cause::OomCause;
pub use device_memory::DeviceMemory;
pub use failure::Failure;
pub use free_elsewhere::FreeElsewhere;
pub use headline::headline;
pub(crate) use retries::RetryTracker;
pub use retries::{Retries, Retry};
