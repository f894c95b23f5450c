//! Layers of models. A layer has parameters, and an operation that uses them.

use std::rc::Rc;

use fastrand::Rng;
use vramscope_collector::{Category, Scope};

use crate::device::Device;
use crate::dtype::DType;
use crate::error::Result;
use crate::operation::Module;
use crate::ops::ConvolutionOptions;
use crate::random::normal;
use crate::tensor::Tensor;

/// A parameter of a model, with its name, such as `blocks.3.qkv.weight`.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The name, as PyTorch's `named_parameters` has it.
    pub name: String,
    /// The path of the module that it belongs to, such as `gpt/block3/attention/qkv`.
    pub module: Rc<str>,
    /// The parameter itself, a leaf. The optimizer changes it in place.
    pub value: Tensor,
}

/// A creator of the parameters of a model, with random numbers from one seed.
pub(crate) struct Initializer<'a> {
    device: &'a Device,
    rng: Rng,
}

impl<'a> Initializer<'a> {
    pub(crate) fn new(device: &'a Device, seed: u64) -> Self {
        Self { device, rng: Rng::with_seed(seed) }
    }

    /// Creates a parameter of normally distributed random numbers with mean 0.
    #[track_caller]
    fn normal(&mut self, shape: &[usize], deviation: f32) -> Result<Tensor> {
        let _category = Scope::of(Category::Parameter);
        let rng = &mut self.rng;
        Ok(Tensor::from_calls(self.device, shape, || normal(rng, deviation))?.with_grad())
    }

    /// Creates a parameter whose elements are all `value`.
    #[track_caller]
    fn constant(&mut self, shape: &[usize], value: f32) -> Result<Tensor> {
        let _category = Scope::of(Category::Parameter);
        Ok(Tensor::full(self.device, shape, DType::F32, value)?.with_grad())
    }
}

/// Puts `prefix` and a dot before the names of parameters.
pub(crate) fn prefixed(prefix: &str, parameters: Vec<Parameter>) -> Vec<Parameter> {
    let named = parameters.into_iter();
    named.map(|parameter| Parameter { name: format!("{prefix}.{}", parameter.name), ..parameter }).collect()
}

/// Returns the parameters of the layer at the path `module`. A parameter whose tensor is `None` is
/// left out.
fn named<const N: usize>(module: &Rc<str>, parameters: [(&str, Option<&Tensor>); N]) -> Vec<Parameter> {
    let present = parameters.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.clone())));
    present.map(|(name, value)| Parameter { name, module: Rc::clone(module), value }).collect()
}

/// The weight of a linear layer, `[outputs, inputs]`.
pub(crate) enum Weight {
    /// Floating-point numbers.
    Float(Tensor),
    /// 8-bit integers and a scale for each row: about a quarter of the memory, for inference.
    Int8 { codes: Tensor, scales: Tensor },
}

/// A linear layer: `x weight^T + bias`.
pub(crate) struct Linear {
    name: &'static str,
    module: Rc<str>,
    pub(crate) weight: Weight,
    pub(crate) bias: Option<Tensor>,
}

impl Linear {
    /// Creates a layer whose weights have the standard deviation `deviation` and whose biases are
    /// 0.
    #[track_caller]
    pub(crate) fn new(
        initializer: &mut Initializer<'_>,
        name: &'static str,
        [inputs, outputs]: [usize; 2],
        has_bias: bool,
        deviation: f32,
    ) -> Result<Self> {
        let _module = Module::enter(name);
        let weight = Weight::Float(initializer.normal(&[outputs, inputs], deviation)?);
        let bias = if has_bias { Some(initializer.constant(&[outputs], 0.0)?) } else { None };
        Ok(Self { name, module: Module::path(), weight, bias })
    }

    #[track_caller]
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _module = Module::enter(self.name);
        match &self.weight {
            Weight::Float(weight) => x.linear(weight, self.bias.as_ref()),
            Weight::Int8 { codes, scales } => x.linear(&codes.dequantized(scales)?, self.bias.as_ref()),
        }
    }

    /// Replaces the weight by 8-bit integers, for inference.
    #[track_caller]
    pub(crate) fn quantize(&mut self) -> Result {
        let _module = Module::enter(self.name);
        if let Weight::Float(weight) = &self.weight {
            let _category = Scope::of(Category::Parameter);
            let (codes, scales) = weight.quantized()?;
            self.weight = Weight::Int8 { codes, scales };
        }
        Ok(())
    }

    /// Returns the size of weight and bias as stored, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let weight = match &self.weight {
            Weight::Float(weight) => weight.bytes(),
            Weight::Int8 { codes, scales } => codes.bytes() + scales.bytes(),
        };
        weight + self.bias.as_ref().map_or(0, Tensor::bytes)
    }

    /// Returns the trainable parameters: all except a quantized weight.
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let weight = match &self.weight {
            Weight::Float(weight) => Some(weight),
            Weight::Int8 { .. } => None,
        };
        named(&self.module, [("weight", weight), ("bias", self.bias.as_ref())])
    }
}

/// A layer norm with weight and bias.
pub(crate) struct LayerNorm {
    name: &'static str,
    module: Rc<str>,
    weight: Tensor,
    bias: Tensor,
}

impl LayerNorm {
    #[track_caller]
    pub(crate) fn new(initializer: &mut Initializer<'_>, name: &'static str, width: usize) -> Result<Self> {
        let _module = Module::enter(name);
        let (weight, bias) = (initializer.constant(&[width], 1.0)?, initializer.constant(&[width], 0.0)?);
        Ok(Self { name, module: Module::path(), weight, bias })
    }

    #[track_caller]
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _module = Module::enter(self.name);
        x.layer_norm(&self.weight, &self.bias)
    }

    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        named(&self.module, [("weight", Some(&self.weight)), ("bias", Some(&self.bias))])
    }
}

/// A table of vectors, looked up by index.
pub(crate) struct Embedding {
    name: &'static str,
    module: Rc<str>,
    weight: Tensor,
}

impl Embedding {
    #[track_caller]
    pub(crate) fn new(
        initializer: &mut Initializer<'_>,
        name: &'static str,
        [rows, width]: [usize; 2],
        deviation: f32,
    ) -> Result<Self> {
        let _module = Module::enter(name);
        Ok(Self { name, module: Module::path(), weight: initializer.normal(&[rows, width], deviation)? })
    }

    #[track_caller]
    pub(crate) fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        let _module = Module::enter(self.name);
        self.weight.embedding(indices)
    }

    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        named(&self.module, [("weight", Some(&self.weight))])
    }
}

/// A convolution without bias, followed by a batch norm.
pub(crate) struct NormedConvolution {
    name: &'static str,
    module: Rc<str>,
    weight: Tensor,
    options: ConvolutionOptions,
    norm_weight: Tensor,
    norm_bias: Tensor,
}

impl NormedConvolution {
    /// Creates a convolution with `kernel` x `kernel` kernels, padded so that stride 1 keeps the
    /// size of images.
    #[track_caller]
    pub(crate) fn new(
        initializer: &mut Initializer<'_>,
        name: &'static str,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        stride: usize,
    ) -> Result<Self> {
        let _module = Module::enter(name);
        // He initialization, for layers that a ReLU follows.
        let deviation = (2.0 / (inputs * kernel * kernel) as f32).sqrt();
        Ok(Self {
            name,
            module: Module::path(),
            weight: initializer.normal(&[outputs, inputs, kernel, kernel], deviation)?,
            options: ConvolutionOptions { stride, padding: kernel / 2 },
            norm_weight: initializer.constant(&[outputs], 1.0)?,
            norm_bias: initializer.constant(&[outputs], 0.0)?,
        })
    }

    #[track_caller]
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _module = Module::enter(self.name);
        x.convolution(&self.weight, self.options)?.batch_norm(&self.norm_weight, &self.norm_bias)
    }

    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        named(
            &self.module,
            [
                ("weight", Some(&self.weight)),
                ("norm.weight", Some(&self.norm_weight)),
                ("norm.bias", Some(&self.norm_bias)),
            ],
        )
    }
}
