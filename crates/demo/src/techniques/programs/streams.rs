//! Makes data on a side stream and reads it on the main stream, in every step.

use vramscope_collector::{Category, Scope};

use super::super::run::{Kept, Run, StepScope};
use super::super::settings::StreamSafety;
use crate::autograd::no_grad;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// The default stream.
const MAIN: usize = 0;
/// The stream that makes the data.
const SIDE: usize = 1;

/// Makes and reads data.
pub(in super::super) fn run(run: &mut Run<'_>) -> Result<Kept> {
    let (device, settings) = (run.device, run.settings);
    let _mode = no_grad();
    let shape = [settings.rows, settings.row_width];
    // Keeps the main stream busy, so that it reads the data late.
    let weight = {
        let _scope = Scope::open_with("model", Category::Parameter);
        Tensor::full(device, &[settings.row_width; 2], DType::F32, 1.0 / settings.row_width as f32)?
    };
    let mut pending_bytes = 0;
    run.each_step(|step| {
        let _step = StepScope::begin(device, step);
        let data = device.with_stream(SIDE, || {
            let _scope = Scope::open_with("side stream", Category::Input);
            Tensor::full(device, &shape, DType::F32, 1.0 + step as f32)
        })?;
        device.wait_stream(MAIN, SIDE)?;
        let mean = {
            let _scope = Scope::open_with("main stream", Category::Activation);
            data.linear(&weight, None)?.mean()?
        };
        match settings.streams {
            // The side stream reuses the memory only after the main stream has read it.
            StreamSafety::Wait => device.wait_stream(SIDE, MAIN)?,
            StreamSafety::RecordStream => data.record_stream(MAIN)?,
        }
        drop(data);
        let stats = device.stats();
        pending_bytes = stats.active_bytes.all.current - stats.allocated_bytes.all.current;
        // Of the first tensor's size, and on its stream.
        let next = device.with_stream(SIDE, || {
            let _scope = Scope::open_with("side stream", Category::Input);
            Tensor::full(device, &shape, DType::F32, f32::NAN)
        })?;
        drop(next);
        mean.item()
    })?;
    run.bytes("data_bytes", (shape[0] * shape[1] * 4) as u64);
    run.bytes("pending_free_bytes", pending_bytes);
    Ok(Box::new(weight))
}
