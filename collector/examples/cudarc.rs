//! A cudarc program whose memory comes from the pool, recorded and shown live.
//!
//! `docs/cudarc.md` shows the middle part, the README the first lines of it; `tests/it/readme.rs`
//! checks that they are equal. Without a GPU the program prints that and ends.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;
use vramscope_collector::{CudaDevice, CudaError, MonitorBuilder};

/// `fill(to, value, count)` writes `value` and the numbers after it.
const KERNELS: &str = include_str!("../tests/it/gpu/kernels.ptx");

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    match CudaDevice::new(0) {
        Ok(_) => train(),
        Err(error @ (CudaError::NoDriver | CudaError::NoDevice { .. })) => {
            println!("SKIPPED: {error}");
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

fn train() -> Result<(), Box<dyn Error>> {
    let context = CudaContext::new(0)?;
    let fill = load(&context)?;

    // New: a pool, its recording and the live page.
    let device = CudaDevice::from_context(&context)?;
    let (monitor, pool) = MonitorBuilder::from_env(device)?.program("train").start()?;
    println!("listening: {}", monitor.url().unwrap_or_default());

    // Changed: this was `let stream = context.default_stream();`.
    let stream = pool.on(&context.default_stream());

    // Unchanged: the stream allocates buffers, and cudarc uses them.
    for step in 0..100_u32 {
        let _step = pool.span(format!("step {step}")); // optional: a name that the page shows
        let len = 1000 + 37 * step;
        let mut numbers = stream.alloc_zeros::<u32>(len as usize)?;
        let config = LaunchConfig::for_num_elems(len);
        // SAFETY: The kernel writes `len` numbers.
        unsafe { stream.launch_builder(&fill).arg(&mut numbers).arg(&step).arg(&len).launch(config) }?;
        assert_eq!(stream.clone_dtoh(&numbers)?[7], step + 7);
    }
    print!("{}", pool.memory_summary(true));
    Ok(())
}

fn load(context: &Arc<CudaContext>) -> Result<CudaFunction, Box<dyn Error>> {
    Ok(context.load_module(Ptx::from_src(KERNELS))?.load_function("fill")?)
}
