//! A program that computes the results of a two-layer network without a gradient graph.

use fastrand::Rng;
use vramscope_collector::{Category, Scope};

use super::super::report::Figure;
use super::super::run::{ProgramState, Run, StepScope};
use crate::autograd::{enable_grad, no_grad};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::random::normal;
use crate::tensor::Tensor;

/// Maximum number of batches that are kept in host memory. Longer runs repeat them.
const MAX_BATCHES: u64 = 8;

/// Returns true if a backward pass returns an error after a tensor that it needs was changed in
/// place.
fn is_change_refused(device: &Device) -> Result<bool> {
    let _mode = enable_grad();
    let _scope = Scope::open_with("refused", Category::Activation);
    let x = Tensor::full(device, &[8], DType::F32, 1.0)?.with_grad();
    let y = x.scale(2.0)?;
    let square = y.multiply(&y)?;
    let _changed = y.clone().add_in_place(&x.detach())?;
    match square.mean()?.backward() {
        Err(TensorError::ChangedInPlace { .. }) => Ok(true),
        result => result.map(|()| false),
    }
}

/// Computes the results of all batches.
pub(in super::super) fn run(run: &mut Run<'_>) -> Result<ProgramState> {
    let (device, settings) = (run.device, run.settings);
    let _mode = no_grad();
    let width = settings.row_width;
    let model = settings.perceptron(device)?;
    // Generated before the first step, so that a step's time is only the network's.
    let batches: Vec<Vec<f32>> = (0..settings.steps.min(MAX_BATCHES))
        .map(|step| {
            let mut rng = Rng::with_seed(settings.seed ^ (step << 20));
            (0..settings.rows * width).map(|_| normal(&mut rng, 1.0)).collect()
        })
        .collect();
    run.each_step(|step| {
        let _step = StepScope::begin(device, step);
        let x = {
            let _scope = Scope::open_with("data", Category::Input);
            Tensor::from_f32(device, &[settings.rows, width], &batches[step as usize % batches.len()])?
        };
        let _scope = Scope::open_with("forward", Category::Activation);
        let y = if settings.in_place { model.forward_in_place(&x)? } else { model.forward(&x)? };
        y.mean()?.item()
    })?;
    run.bytes("hidden_bytes", (settings.rows * settings.hidden * 4) as u64);
    run.figure("refused_changes", Figure::Count(u64::from(is_change_refused(device)?)));
    Ok(Box::new(model))
}
