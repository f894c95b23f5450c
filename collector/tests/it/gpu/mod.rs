//! Gives one test at a time the GPU: tests check how much memory is free, and some use most of it.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vramscope_collector::{CudaDevice, CudaError};

/// Locked by the test that uses the GPU.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Waits for exclusive use of the GPU. Without a GPU it prints `SKIPPED` and returns `None`.
///
/// # Panics
///
/// If a GPU is present but cannot be opened.
pub(crate) fn turn() -> Option<MutexGuard<'static, ()>> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match CudaDevice::new(0) {
        Ok(_) => Some(turn),
        Err(CudaError::NoDriver | CudaError::NoDevice { .. }) => {
            skip("CUDA is not available");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Prints that a test did not run. The test harness hides the output of `println!` in passing
/// tests, but not what is written to stderr directly.
pub(crate) fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    // A single write, so that lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("SKIPPED: {reason} ({test})\n").as_bytes());
}
