//! Tests of the exports to Perfetto, TensorBoard, CSV and Parquet. `cargo xtask test` also reads
//! the exports with these tools.

mod common;
mod perfetto;
mod tables;
mod tensorboard;
