//! Records a program that uses no GPU: the pool allocates host memory.
//!
//! The program needs only this crate, without features: `cargo run --example host
//! --no-default-features`. With the feature `server`, the live page is served while it runs. Open
//! the recording with `vramscope view host.vram`.

use std::error::Error;

use vramscope_collector::{Category, HostDevice, Monitor, MonitorBuilder};

fn main() -> Result<(), Box<dyn Error>> {
    let builder = MonitorBuilder::from_env(HostDevice::new(1 << 30))?; // PYTORCH_CUDA_ALLOC_CONF
    let (monitor, pool) = builder.program("host").record("host.vram").start()?;

    let weights = pool.clone_htod(&[0.5_f32; 4096])?;
    for step in 0..10 {
        let _span = pool.span(format!("step {step}"));
        let _forward = pool.scope_with("forward", Category::Activation);
        let mut hidden = pool.alloc_zeros::<f32>(weights.len())?;
        for (output, weight) in hidden.iter_mut().zip(weights.iter()) {
            *output = weight * step as f32;
        }
    }
    println!("{}", pool.memory_summary(true));

    let events = stop(monitor)?;
    println!("{events} events are in host.vram");
    Ok(())
}

/// Ends the recording and returns its number of events.
fn stop(monitor: Monitor) -> Result<u64, Box<dyn Error>> {
    let summary = monitor.stop();
    summary.file_error.map_or(Ok(summary.events), |error| Err(error.into()))
}
