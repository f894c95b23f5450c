//! The reader of PyTorch snapshots, on real snapshots and on hostile ones.

mod common;
mod hostile;
mod json;
mod late;
mod pickler;
mod recorded;
mod shapes;
mod tolerance;
mod unpickle;
