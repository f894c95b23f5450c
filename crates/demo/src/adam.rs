//! The Adam optimizer.

use vramscope_collector::{AllocateError, HostPool};
use vramscope_trace::Category;

use crate::network::{Layer, Parameters};

/// Adam's learning rate: the factor of each update of the parameters.
const LEARNING_RATE: f32 = 1e-3;
/// Share of the gradients' moving average that is kept in each step: Adam's beta 1.
const MEAN_DECAY: f32 = 0.9;
/// Share of the moving average of the gradients' squares that is kept in each step: Adam's beta 2.
const VARIANCE_DECAY: f32 = 0.999;
/// Adam's epsilon: added to the divisor of each update, so that the divisor is never 0.
const EPSILON: f32 = 1e-8;

/// Adam's state for one layer: the moving averages of the layer's gradient and of the gradient's
/// square.
struct Moments {
    mean: Parameters,
    variance: Parameters,
}

/// The Adam optimizer. Like PyTorch's, it allocates its state in the first step.
#[derive(Default)]
pub(crate) struct Adam {
    moments: Vec<Moments>,
    steps: i32,
}

impl Adam {
    /// Runs one step of the optimizer: updates the parameters of `layers` in place. `gradients` has
    /// one element for each layer, in the same order.
    pub(crate) fn step(
        &mut self,
        pool: &HostPool,
        layers: &mut [Layer],
        gradients: &[Parameters],
    ) -> Result<(), AllocateError> {
        let _optimizer_scope = pool.scope("optimizer");
        self.steps += 1;
        let mean_scale = 1.0 / (1.0 - MEAN_DECAY.powi(self.steps));
        let variance_scale = 1.0 / (1.0 - VARIANCE_DECAY.powi(self.steps));
        for (index, (layer, gradient)) in layers.iter_mut().zip(gradients).enumerate() {
            let _layer_scope = pool.scope(&layer.name);
            if self.moments.len() == index {
                let _state_category = pool.category(Category::OptimizerState);
                self.moments.push(Moments { mean: gradient.zeros_like()?, variance: gradient.zeros_like()? });
            }
            let Moments { mean, variance } = &mut self.moments[index];
            let (tensors, moments) =
                (layer.parameters.tensors_mut(), mean.tensors_mut().into_iter().zip(variance.tensors_mut()));
            for ((parameter, gradient), (mean, variance)) in tensors.into_iter().zip(gradient.tensors()).zip(moments) {
                for ((mean, variance), &gradient) in mean.iter_mut().zip(variance.iter_mut()).zip(gradient.iter()) {
                    *mean += (gradient - *mean) * (1.0 - MEAN_DECAY);
                    *variance += (gradient * gradient - *variance) * (1.0 - VARIANCE_DECAY);
                }
                // Two passes with the divisor in memory, as in an optimizer made of tensor
                // operations.
                let _temporary_category = pool.category(Category::Temporary);
                let mut divisor = pool.alloc_zeros::<f32>(variance.len())?;
                for (divisor, variance) in divisor.iter_mut().zip(variance.iter()) {
                    *divisor = (variance * variance_scale).sqrt() + EPSILON;
                }
                for ((parameter, mean), divisor) in parameter.iter_mut().zip(mean.iter()).zip(divisor.iter()) {
                    *parameter -= LEARNING_RATE * mean_scale * mean / divisor;
                }
            }
        }
        Ok(())
    }
}
