//! Each technique: its effect on the host, by sign and size, and its page in the docs.

#![allow(missing_docs)]

mod effects;
mod page;
mod plans;
mod recorded;
