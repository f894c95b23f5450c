//! A multi-layer perceptron with forward and backward passes, whose tensors live in the pool.

use fastrand::Rng;
use vramscope_collector::{AllocateError, HostPool, PoolSlice};
use vramscope_trace::Category;

use crate::matrix::{Dimensions, multiply_add, transpose};
use crate::random::normal;

/// A layer's weights and bias, or numbers of the same shape: their gradients, or moving averages of
/// these.
pub(crate) struct Parameters {
    /// A matrix of `inputs` x `outputs`.
    pub(crate) weights: PoolSlice<f32>,
    pub(crate) bias: PoolSlice<f32>,
}

impl Parameters {
    /// Returns zeros, in new buffers, of the same shape as these weights and bias.
    #[track_caller]
    pub(crate) fn zeros_like(&self) -> Result<Self, AllocateError> {
        let pool = self.weights.pool();
        Ok(Self { weights: pool.alloc_zeros(self.weights.len())?, bias: pool.alloc_zeros(self.bias.len())? })
    }

    /// Returns a copy of the weights and bias in new buffers.
    #[track_caller]
    pub(crate) fn duplicate(&self) -> Result<Self, AllocateError> {
        let pool = self.weights.pool();
        Ok(Self { weights: pool.clone_htod(&self.weights)?, bias: pool.clone_htod(&self.bias)? })
    }

    /// Returns the buffers of the weights and of the bias.
    pub(crate) fn tensors(&self) -> [&PoolSlice<f32>; 2] {
        [&self.weights, &self.bias]
    }

    /// Returns the buffers of the weights and of the bias, mutably.
    pub(crate) fn tensors_mut(&mut self) -> [&mut PoolSlice<f32>; 2] {
        [&mut self.weights, &mut self.bias]
    }
}

/// A fully connected layer of the network: its parameters, its sizes, and the name of its scope.
pub(crate) struct Layer {
    /// The name of the layer's scope.
    pub(crate) name: String,
    inputs: usize,
    outputs: usize,
    pub(crate) parameters: Parameters,
}

impl Layer {
    fn new(
        pool: &HostPool,
        number: usize,
        inputs: usize,
        outputs: usize,
        rng: &mut Rng,
    ) -> Result<Self, AllocateError> {
        let name = format!("layer{number}");
        let _layer_scope = pool.scope_with(&name, Category::Parameter);
        let mut parameters =
            Parameters { weights: pool.alloc_zeros(inputs * outputs)?, bias: pool.alloc_zeros(outputs)? };
        // He initialization preserves the variance through layers followed by a ReLU.
        let deviation = (2.0 / inputs as f32).sqrt();
        parameters.weights.fill_with(|| normal(rng, deviation));
        Ok(Self { name, inputs, outputs, parameters })
    }

    /// Returns the layer's outputs for a batch. `inputs` and outputs have one row for each image.
    fn forward(&self, pool: &HostPool, inputs: &[f32]) -> Result<PoolSlice<f32>, AllocateError> {
        let rows = inputs.len() / self.inputs;
        let mut outputs = pool.alloc_zeros(rows * self.outputs)?;
        for row in outputs.chunks_exact_mut(self.outputs) {
            row.copy_from_slice(&self.parameters.bias);
        }
        let dimensions = Dimensions { rows, inner: self.inputs, columns: self.outputs };
        multiply_add(inputs, &self.parameters.weights, &mut outputs, dimensions);
        Ok(outputs)
    }

    /// Returns the gradient of the layer's parameters for a batch, given the layer's `inputs` and,
    /// as `outputs`, the gradient of its outputs.
    fn parameter_gradient(
        &self,
        pool: &HostPool,
        inputs: &[f32],
        outputs: &[f32],
    ) -> Result<Parameters, AllocateError> {
        let rows = inputs.len() / self.inputs;
        let transposed_inputs = transpose(pool, inputs, self.inputs)?;
        let mut gradient = self.parameters.zeros_like()?;
        let dimensions = Dimensions { rows: self.inputs, inner: rows, columns: self.outputs };
        multiply_add(&transposed_inputs, outputs, &mut gradient.weights, dimensions);
        for row in outputs.chunks_exact(self.outputs) {
            gradient.bias.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        Ok(gradient)
    }

    /// Returns the gradient of the layer's inputs for a batch. `outputs` is the gradient of its
    /// outputs, not the outputs.
    fn input_gradient(&self, pool: &HostPool, outputs: &[f32]) -> Result<PoolSlice<f32>, AllocateError> {
        let rows = outputs.len() / self.outputs;
        let transposed_weights = transpose(pool, &self.parameters.weights, self.outputs)?;
        let mut inputs = pool.alloc_zeros(rows * self.inputs)?;
        let dimensions = Dimensions { rows, inner: self.outputs, columns: self.inputs };
        multiply_add(outputs, &transposed_weights, &mut inputs, dimensions);
        Ok(inputs)
    }
}

/// Returns a copy of `values` in a new buffer, with negative values replaced by 0.
fn relu(pool: &HostPool, values: &[f32]) -> Result<PoolSlice<f32>, AllocateError> {
    let mut positive = pool.alloc_zeros::<f32>(values.len())?;
    positive.iter_mut().zip(values).for_each(|(positive, value)| *positive = value.max(0.0));
    Ok(positive)
}

/// The results of a forward pass that the backward pass needs: the inputs of each layer, and the
/// logits.
pub(crate) struct Activations {
    /// The inputs of each layer.
    layer_inputs: Vec<PoolSlice<f32>>,
    logits: PoolSlice<f32>,
}

/// A multi-layer perceptron: fully connected layers with a ReLU between each two.
pub(crate) struct Network {
    pool: HostPool,
    pub(crate) layers: Vec<Layer>,
}

impl Network {
    /// Creates a network with random weights. `widths` are the number of inputs, then the outputs
    /// of each layer.
    pub(crate) fn new(pool: &HostPool, widths: &[usize], rng: &mut Rng) -> Result<Self, AllocateError> {
        let pairs = widths.windows(2).enumerate();
        let layers = pairs.map(|(index, pair)| Layer::new(pool, index + 1, pair[0], pair[1], rng));
        Ok(Self { pool: pool.clone(), layers: layers.collect::<Result<_, _>>()? })
    }

    /// Runs a batch of images through the network and returns what the backward pass needs.
    pub(crate) fn forward(&self, batch: PoolSlice<f32>) -> Result<Activations, AllocateError> {
        let _forward_scope = self.pool.scope_with("forward", Category::Activation);
        let mut layer_inputs = vec![batch];
        loop {
            let index = layer_inputs.len() - 1;
            let layer = &self.layers[index];
            let _layer_scope = self.pool.scope(&layer.name);
            let outputs = layer.forward(&self.pool, &layer_inputs[index])?;
            if layer_inputs.len() == self.layers.len() {
                return Ok(Activations { layer_inputs, logits: outputs });
            }
            layer_inputs.push(relu(&self.pool, &outputs)?);
        }
    }

    /// Runs a batch of images through the network and returns only the logits, one row for each
    /// image.
    pub(crate) fn predict(&self, batch: PoolSlice<f32>) -> Result<PoolSlice<f32>, AllocateError> {
        let _forward_scope = self.pool.scope_with("forward", Category::Activation);
        let mut values = batch;
        for (index, layer) in self.layers.iter().enumerate() {
            let _layer_scope = self.pool.scope(&layer.name);
            values = layer.forward(&self.pool, &values)?;
            if index + 1 < self.layers.len() {
                values = relu(&self.pool, &values)?;
            }
        }
        Ok(values)
    }

    /// Returns the mean loss over the batch and the loss's gradient for each layer's parameters, in
    /// the order of the layers. `labels` are the correct classes.
    pub(crate) fn backward(
        &self,
        activations: Activations,
        labels: &[u8],
    ) -> Result<(f32, Vec<Parameters>), AllocateError> {
        let _backward_scope = self.pool.scope_with("backward", Category::Gradient);
        let Activations { mut layer_inputs, logits } = activations;
        let (loss, mut gradient) = loss_and_gradient(&self.pool, &logits, labels)?;
        drop(logits);
        let mut gradients = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let _layer_scope = self.pool.scope(&layer.name);
            let inputs = layer_inputs.pop().expect("the forward pass kept the inputs of every layer");
            gradients.push(layer.parameter_gradient(&self.pool, &inputs, &gradient)?);
            if index > 0 {
                gradient = layer.input_gradient(&self.pool, &gradient)?;
                // The inputs are the output of a ReLU, whose gradient is 0 where its output is 0.
                gradient
                    .iter_mut()
                    .zip(inputs.iter())
                    .filter(|(_, input)| **input == 0.0)
                    .for_each(|(value, _)| *value = 0.0);
            }
        }
        gradients.reverse();
        Ok((loss, gradients))
    }
}

/// Returns the mean cross-entropy loss of the softmax of `logits` against the correct classes
/// `labels`, and the loss's gradient with respect to the logits.
fn loss_and_gradient(pool: &HostPool, logits: &[f32], labels: &[u8]) -> Result<(f32, PoolSlice<f32>), AllocateError> {
    let _loss_scope = pool.scope("loss");
    let classes = logits.len() / labels.len();
    let scale = 1.0 / labels.len() as f32;
    let mut gradient = pool.clone_htod(logits)?;
    let mut loss = 0.0;
    for (row, &label) in gradient.chunks_exact_mut(classes).zip(labels) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let target = row[usize::from(label)];
        let sum: f32 = row.iter().map(|value| (value - max).exp()).sum();
        loss += sum.ln() + max - target;
        row.iter_mut().for_each(|value| *value = (*value - max).exp() / sum * scale);
        row[usize::from(label)] -= scale;
    }
    Ok((loss * scale, gradient))
}

/// Iterates over the rows of `logits`, each with `classes` values, and returns the index of the
/// largest value of each row; the first of several.
pub(crate) fn argmax_rows<'a>(logits: &'a [f32], classes: usize) -> impl Iterator<Item = usize> + 'a {
    logits
        .chunks_exact(classes)
        .map(|row| (1..row.len()).fold(0, |best, index| if row[index] > row[best] { index } else { best }))
}

#[cfg(test)]
mod tests {
    use vramscope_collector::{HostDevice, Settings};
    use vramscope_trace::NullSink;

    use super::*;
    use crate::random::symmetric;

    #[test]
    fn gradients_match_finite_differences() {
        let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), NullSink, || 0);
        let mut rng = Rng::with_seed(3);
        let mut network = Network::new(&pool, &[9, 7, 6, 4], &mut rng).expect("the pool is large enough");
        let batch: Vec<f32> = (0..5 * 9).map(|_| symmetric(&mut rng, 1.0)).collect();
        let labels = [0, 3, 1, 2, 3];
        let loss_of = |network: &Network| {
            let forward = network
                .forward(pool.clone_htod(&batch).expect("the pool is large enough"))
                .expect("the pool is large enough");
            network.backward(forward, &labels).expect("the pool is large enough")
        };
        let (_, gradients) = loss_of(&network);
        const STEP: f32 = 1e-2;
        let mut checked = 0;
        for (layer, gradient) in gradients.iter().enumerate() {
            for tensor in 0..2 {
                for index in 0..network.layers[layer].parameters.tensors()[tensor].len() {
                    let mut loss_at = |offset: f32| {
                        network.layers[layer].parameters.tensors_mut()[tensor][index] += offset;
                        let (loss, _) = loss_of(&network);
                        network.layers[layer].parameters.tensors_mut()[tensor][index] -= offset;
                        loss
                    };
                    let difference = (loss_at(STEP) - loss_at(-STEP)) / (2.0 * STEP);
                    let gradient = gradient.tensors()[tensor][index];
                    assert!(
                        (difference - gradient).abs() < 4e-3,
                        "layer {layer}, tensor {tensor}, {index}: gradient {gradient}, difference {difference}"
                    );
                    checked += 1;
                }
            }
        }
        assert_eq!(checked, 9 * 7 + 7 + 7 * 6 + 6 + 6 * 4 + 4);
    }

    #[test]
    fn prediction_equals_the_forward_pass() {
        let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), NullSink, || 0);
        let network = Network::new(&pool, &[4, 8, 3], &mut Rng::with_seed(1)).expect("the pool is large enough");
        let batch = || pool.full(8, 0.5f32).expect("the pool is large enough");
        assert_eq!(
            network.forward(batch()).expect("the pool is large enough").logits[..],
            network.predict(batch()).expect("the pool is large enough")[..]
        );
        assert_eq!(argmax_rows(&[1.0, 3.0, 2.0, 9.0, 0.0, 9.0], 3).collect::<Vec<_>>(), [1, 0]);
    }
}
