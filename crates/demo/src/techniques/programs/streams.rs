//! A program that writes data on a side stream and reads it on the main stream, in every step.

use vramscope_collector::{Category, Scope};

use super::super::report::Figure;
use super::super::run::{ProgramState, Run, StepScope};
use super::super::settings::{DeviceKind, StreamSafety};
use crate::autograd::no_grad;
use crate::dtype::DType;
use crate::error::Result;
use crate::tensor::Tensor;

/// Index of the stream that reads the data: the default stream.
const MAIN: usize = 0;
/// Index of the stream that writes the data.
const SIDE: usize = 1;
/// Number of multiplications in the matrix products that delay the main stream of a GPU. Without
/// stream safety, the main stream then reads the data after the side stream has reused the memory.
/// On an H100 the products take 6 ms, the host's calls 0.1 ms. An eighth was not enough while other
/// programs used the GPU.
const DELAYING_MULTIPLICATIONS: usize = 1 << 37;

/// Writes and reads the data.
pub(in super::super) fn run(run: &mut Run<'_>) -> Result<ProgramState> {
    let (device, settings) = (run.device, run.settings);
    let _mode = no_grad();
    let shape = [settings.rows, settings.row_width];
    let (weight, other) = {
        let _scope = Scope::open_with("model", Category::Parameter);
        let weight = Tensor::full(device, &[settings.row_width; 2], DType::F32, 1.0 / settings.row_width as f32)?;
        (weight, Tensor::full(device, &shape, DType::F32, 1.0)?)
    };
    // On the host nothing is delayed: each operation ends before the next one begins.
    let multiplications = if settings.device == DeviceKind::Cuda { DELAYING_MULTIPLICATIONS } else { 0 };
    let delaying_products = multiplications / (settings.rows * settings.row_width * settings.row_width);
    let (mut pending_bytes, mut overwritten_steps) = (0, 0);
    run.each_step(|step| {
        let _step = StepScope::begin(device, step);
        let value = 1.0 + step as f32;
        for _ in 0..delaying_products {
            let _scope = Scope::open_with("main stream", Category::Activation);
            other.linear(&weight, None)?;
        }
        let data = device.with_stream(SIDE, || {
            let _scope = Scope::open_with("side stream", Category::Input);
            Tensor::full(device, &shape, DType::F32, value)
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
            StreamSafety::Unprotected => {}
        }
        drop(data);
        let stats = device.stats();
        pending_bytes = stats.active_bytes.all.current - stats.allocated_bytes.all.current;
        // Has the size of the first tensor and its stream, so that it may reuse the memory.
        let next = device.with_stream(SIDE, || {
            let _scope = Scope::open_with("side stream", Category::Input);
            Tensor::full(device, &shape, DType::F32, -1.0)
        })?;
        drop(next);
        let mean = mean.item()?;
        overwritten_steps += u64::from((mean - value).abs() > 1e-3 * value);
        Ok(mean)
    })?;
    run.bytes("data_bytes", (shape[0] * shape[1] * 4) as u64);
    run.bytes("pending_free_bytes", pending_bytes);
    run.figure("overwritten_steps", Figure::Count(overwritten_steps));
    Ok(Box::new((weight, other)))
}
