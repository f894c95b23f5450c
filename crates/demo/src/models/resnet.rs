//! A small residual network for images: three stages of residual blocks of two convolutions.

use crate::device::Device;
use crate::error::Result;
use crate::modules::{Initializer, Linear, NormedConvolution, Parameter, prefixed};
use crate::operation::Module;
use crate::tensor::Tensor;

/// Channels of the three stages.
const CHANNELS: [usize; 3] = [16, 32, 64];

/// A residual block: two convolutions, whose result is added to their input.
struct ResidualBlock {
    name: String,
    first: NormedConvolution,
    second: NormedConvolution,
    /// Converts the input to the shape of the result; `None` if the shapes are equal.
    shortcut: Option<NormedConvolution>,
}

impl ResidualBlock {
    fn new(initializer: &mut Initializer<'_>, name: String, channels: [usize; 2], stride: usize) -> Result<Self> {
        let _module = Module::enter(&name);
        let [inputs, outputs] = channels;
        let first = NormedConvolution::new(initializer, "first", channels, 3, stride)?;
        let second = NormedConvolution::new(initializer, "second", [outputs, outputs], 3, 1)?;
        let needs_shortcut = stride > 1 || inputs != outputs;
        let shortcut = || NormedConvolution::new(initializer, "shortcut", channels, 1, stride);
        let shortcut = needs_shortcut.then(shortcut).transpose()?;
        Ok(Self { name, first, second, shortcut })
    }

    fn forward(&self, x: &Tensor, in_place: bool) -> Result<Tensor> {
        let _module = Module::enter(&self.name);
        let inner = self.second.forward(&relu(self.first.forward(x)?, in_place)?)?;
        let shortcut = match &self.shortcut {
            Some(shortcut) => shortcut.forward(x)?,
            None => x.clone(),
        };
        let sum = if in_place { inner.add_in_place(&shortcut)? } else { inner.add(&shortcut)? };
        drop(shortcut);
        relu(sum, in_place)
    }
}

/// Computes a ReLU, in the memory of its argument if `in_place` is true.
#[track_caller]
fn relu(x: Tensor, in_place: bool) -> Result<Tensor> {
    if in_place { x.relu_in_place() } else { x.relu() }
}

/// A small ResNet: a convolution, three stages of residual blocks, global average pooling and a
/// linear layer.
pub struct ResNet {
    stem: NormedConvolution,
    blocks: Vec<ResidualBlock>,
    head: Linear,
}

impl ResNet {
    /// Creates a network for images with `channels` channels, with `depth` residual blocks in each
    /// of the three stages. `seed` determines the random parameters.
    ///
    /// # Errors
    /// If the parameters cannot be allocated.
    pub fn new(device: &Device, channels: usize, depth: usize, classes: usize, seed: u64) -> Result<Self> {
        let _module = Module::enter("resnet");
        let mut initializer = Initializer::new(device, seed);
        let stem = NormedConvolution::new(&mut initializer, "stem", [channels, CHANNELS[0]], 3, 1)?;
        let mut blocks = Vec::new();
        let mut inputs = CHANNELS[0];
        for (stage, outputs) in CHANNELS.into_iter().enumerate() {
            for index in 0..depth {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let name = format!("stage{stage}.{index}");
                blocks.push(ResidualBlock::new(&mut initializer, name, [inputs, outputs], stride)?);
                inputs = outputs;
            }
        }
        let head = Linear::new(&mut initializer, "head", [inputs, classes], true, (1.0 / inputs as f32).sqrt())?;
        Ok(Self { stem, blocks, head })
    }

    /// Computes the logits `[images, classes]` of images `[images, channels, height, width]`. With
    /// `in_place`, ReLUs and sums overwrite their arguments.
    ///
    /// # Errors
    /// If the shape does not fit, or memory or kernels fail.
    pub fn forward(&self, images: &Tensor, in_place: bool) -> Result<Tensor> {
        let _module = Module::enter("resnet");
        let mut x = relu(self.stem.forward(images)?, in_place)?;
        for block in &self.blocks {
            x = block.forward(&x, in_place)?;
        }
        self.head.forward(&x.average_pixels()?)
    }

    /// Returns the parameters.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all: Vec<Parameter> = prefixed("stem", self.stem.parameters());
        for (index, block) in self.blocks.iter().enumerate() {
            let layers =
                [("first", Some(&block.first)), ("second", Some(&block.second)), ("shortcut", block.shortcut.as_ref())];
            for (name, layer) in layers {
                let parameters = layer.map(NormedConvolution::parameters).unwrap_or_default();
                all.extend(prefixed(&format!("blocks.{index}.{name}"), parameters));
            }
        }
        all.extend(prefixed("head", self.head.parameters()));
        all
    }
}
