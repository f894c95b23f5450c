//! Offline placement: addresses for buffers whose lifetimes are all known in advance.
//!
//! An allocator decides at each request without knowing the next ones, so it wastes memory that a
//! program needs at no moment. A placement that knows all lifetimes shows how much of a recording's
//! reserved memory is waste of the allocator. No placement is lower than the peak of live bytes.
//!
//! [`Packer`] places buffers in steps, and has a valid placement from the first step on. Finding
//! the lowest placement is NP-hard (Garey and Johnson, problem SR2, "dynamic storage allocation"),
//! so it improves the best one until it is proven to be the lowest, or the caller stops:
//!
//! 1. `time_order` places each buffer when its lifetime starts, as an allocator would.
//! 2. `greedy` places the buffers of one order after another as low as possible. Buffers that live
//!    long are at the bottom (`long_lived`).
//! 3. `ejection` searches for a placement below a height: it places one buffer, removes those in
//!    its way, and places these again ("guided ejection search", Nagata and Bräysy, Operations
//!    Research Letters 37(5), 2009).
//! 4. `exact` finds a placement below a height, or proves that the height is too low (branch and
//!    bound over canonical placements, Moffitt, "MiniMalloc", ASPLOS 2023), for up to some 15,000
//!    buffers.
//!
//! [`DevicePacker`] places the requests of a recorded device, in which memory goes from one stream
//! or private pool to another only through the driver (`reuse`). It begins with groups of requests
//! that each have one range of memory (`arenas`).

mod arenas;
mod budget;
mod buffer;
mod device_packer;
mod ejection;
mod exact;
mod greedy;
mod layout;
mod long_lived;
mod overlaps;
mod packer;
mod problem;
mod reuse;
#[cfg(test)]
mod tests;
mod time_order;

pub use buffer::{Buffer, InvalidBuffer, PlacementError, check_placement, common_alignment};
pub use device_packer::{DevicePacker, PlacedRequest};
pub use packer::{Packer, PackingState};
