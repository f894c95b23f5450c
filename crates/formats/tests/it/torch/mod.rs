//! Tests of the reader of PyTorch snapshots, with real and hostile input.

mod amplification;
mod cases;
mod common;
mod hostile;
mod json;
mod late;
mod pickler;
mod pieces;
mod recorded;
mod shapes;
mod tolerance;
mod unpickle;
