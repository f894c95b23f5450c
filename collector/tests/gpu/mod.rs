//! The GPU of this machine, for one test at a time: tests look at how much memory is free, and some take most of it.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use vramscope_collector::{CudaDevice, CudaError};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The GPU and the right to use it. On a machine without one this says so and gives nothing; a GPU that does not open is a failure.
pub(crate) fn turn() -> Option<MutexGuard<'static, ()>> {
    let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    match CudaDevice::new(0) {
        Ok(_) => Some(turn),
        Err(CudaError::NoDriver | CudaError::NoDevice { .. }) => {
            skip("no CUDA here");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Says that a test did not run. The macros' output is not shown for a test that passes; this is.
pub(crate) fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    // One write, so that the lines of several threads stay whole.
    let _ = io::stderr().write_all(format!("SKIPPED: {reason} ({test})\n").as_bytes());
}
