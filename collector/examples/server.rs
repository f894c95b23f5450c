//! Serves the live page of a program that uses no GPU: the pool allocates host memory.
//!
//! Prints the page's URL, runs 300 short training steps, and prints a summary. The program needs
//! only this crate with its feature `server`.

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use vramscope_collector::{Category, HostDevice, HostPool, Monitor};

const STEPS: usize = 300;
/// Time between two steps.
const STEP_INTERVAL: Duration = Duration::from_millis(2);

fn main() -> Result<(), Box<dyn Error>> {
    let address: SocketAddr = "127.0.0.1:0".parse()?; // port 0: any free port
    let (monitor, pool) = Monitor::builder(HostDevice::new(1 << 30)).program("server").listen(address).start()?;
    println!("listening: {}", monitor.url().unwrap_or_default());

    let weights = {
        let _parameters = pool.category(Category::Parameter);
        pool.clone_htod(&[0.01_f32; 4096])?
    };
    let mut loss = 0.0;
    for step in 0..STEPS {
        let _span = pool.span(format!("step {step}"));
        loss = train(&pool, &weights, step)?;
        thread::sleep(STEP_INTERVAL);
    }

    let allocated = pool.max_memory_allocated();
    let summary = monitor.stop();
    println!("{STEPS} steps, loss {loss:.3}: {} events, at most {allocated} bytes allocated", summary.events);
    Ok(())
}

/// Runs one step: every fourth step has a longer sequence, so that sizes vary.
fn train(pool: &HostPool, weights: &[f32], step: usize) -> Result<f32, Box<dyn Error>> {
    let tokens = if step.is_multiple_of(4) { 96 } else { 64 };
    let _forward = pool.scope_with("forward", Category::Activation);
    let mut activations = Vec::new();
    for layer in 0..4 {
        let _layer = pool.scope(&format!("layer{layer}"));
        let mut output = pool.alloc_zeros::<f32>(tokens * weights.len())?;
        for (value, weight) in output.iter_mut().zip(weights) {
            *value = weight * (layer + 1) as f32;
        }
        activations.push(output);
    }
    // The activations are freed here, at the end of the step.
    Ok(activations.iter().flat_map(|output| output.iter().take(weights.len())).sum())
}
