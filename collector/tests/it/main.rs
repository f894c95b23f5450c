//! Tests of the collector as a program uses it.

#![allow(missing_docs)]

mod attacks;
mod cuda;
mod cuda_streams;
mod devices;
mod file;
mod gpu;
mod host_pool;
mod monitor;
mod proxied;
mod readme;
