//! Lists of allocations, filtered, sorted and read in windows.
//!
//! An [`AllocationList`] visits the allocations of a device in steps, keeps the allocations that
//! match a query and a scope, and sorts only the windows that are read. Keeping an allocation takes
//! 16 bytes. Filtering 1,330,000 takes 30 to 75 ms, depending on the order, and the first window 5
//! ms.

mod lazy_sort;
mod list;
mod order;

pub use list::{AllocationList, AllocationSource, ListedAllocation, Scope};
pub use order::{AllocationOrder, SortKey};
