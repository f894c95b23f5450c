//! Each technique's effect on the host, by sign and size.

#![allow(missing_docs)]

mod effects;
mod plans;
mod recorded;
