//! A multi-layer perceptron: linear layers with ReLU between them.

use crate::device::Device;
use crate::error::{Result, arguments};
use crate::modules::{Initializer, Linear, Parameter, prefixed};
use crate::operation::Module;
use crate::tensor::Tensor;

/// Names of the layers, which are also the names of their scopes.
const LAYERS: [&str; 8] = ["layer0", "layer1", "layer2", "layer3", "layer4", "layer5", "layer6", "layer7"];

/// A multi-layer perceptron with its parameters.
pub struct Perceptron {
    layers: Vec<Linear>,
}

impl Perceptron {
    /// Creates a perceptron whose layers lead from each of `widths` to the next. `seed` determines
    /// the random parameters.
    ///
    /// # Errors
    /// If there are not 2 to 9 widths, or the parameters cannot be allocated.
    pub fn new(device: &Device, widths: &[usize], seed: u64) -> Result<Self> {
        if !(2..=LAYERS.len() + 1).contains(&widths.len()) {
            return Err(arguments("perceptron", format!("{} widths instead of 2 to 9", widths.len())));
        }
        let _module = Module::enter("perceptron");
        let mut initializer = Initializer::new(device, seed);
        let layers = widths.windows(2).zip(LAYERS).map(|(widths, name)| {
            let (inputs, outputs) = (widths[0], widths[1]);
            Linear::new(&mut initializer, name, [inputs, outputs], true, (2.0 / inputs as f32).sqrt())
        });
        Ok(Self { layers: layers.collect::<Result<_>>()? })
    }

    /// Computes the logits `[rows, outputs]` of `x` `[rows, inputs]`.
    ///
    /// # Errors
    /// If `x` has another width, or memory or kernels fail.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, |x| x.relu())
    }

    /// Computes the logits as [`forward`](Self::forward), with ReLUs that overwrite their
    /// arguments.
    ///
    /// # Errors
    /// As for [`forward`](Self::forward).
    pub fn forward_in_place(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, |x| x.relu_in_place())
    }

    /// Computes the logits of `x` with `relu` between the layers.
    fn forward_with(&self, x: &Tensor, relu: impl Fn(Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let _module = Module::enter("perceptron");
        let mut x = x.clone();
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x)?;
            if index + 1 < self.layers.len() {
                x = relu(x)?;
            }
        }
        Ok(x)
    }

    /// Returns the parameters, layer by layer.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        let layers = self.layers.iter().enumerate();
        layers.flat_map(|(index, layer)| prefixed(&format!("layers.{index}"), layer.parameters())).collect()
    }
}
