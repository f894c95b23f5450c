//! The reader of PyTorch snapshots, on real snapshots and on hostile ones.

mod common;
mod json;
mod recorded;
mod unpickle;
