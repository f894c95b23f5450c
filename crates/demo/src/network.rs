//! A multi-layer perceptron: forward, backward, and what each needs of the pool.

use vramscope_collector::{AllocateError, HostPool, PoolSlice};
use vramscope_trace::Category;

use crate::matrix::{Sizes, multiply_add, transposed};
use crate::random::Random;

/// A layer's weights and bias; also their gradient, or an average of it.
pub(crate) struct Parameters {
    /// `inputs` x `outputs`.
    pub(crate) weights: PoolSlice<f32>,
    pub(crate) bias: PoolSlice<f32>,
}

impl Parameters {
    #[track_caller]
    pub(crate) fn zeros_like(&self) -> Result<Self, AllocateError> {
        let pool = self.weights.pool();
        Ok(Self { weights: pool.alloc_zeros(self.weights.len())?, bias: pool.alloc_zeros(self.bias.len())? })
    }

    #[track_caller]
    pub(crate) fn duplicate(&self) -> Result<Self, AllocateError> {
        let pool = self.weights.pool();
        Ok(Self { weights: pool.clone_htod(&self.weights)?, bias: pool.clone_htod(&self.bias)? })
    }

    /// Weights and bias, to do the same to both.
    pub(crate) fn parts(&self) -> [&PoolSlice<f32>; 2] {
        [&self.weights, &self.bias]
    }

    pub(crate) fn parts_mut(&mut self) -> [&mut PoolSlice<f32>; 2] {
        [&mut self.weights, &mut self.bias]
    }
}

/// A fully connected layer.
pub(crate) struct Layer {
    /// The name of its scope.
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
        random: &mut Random,
    ) -> Result<Self, AllocateError> {
        let name = format!("layer{number}");
        let _layer = pool.scope_with(&name, Category::Parameter);
        let mut parameters =
            Parameters { weights: pool.alloc_zeros(inputs * outputs)?, bias: pool.alloc_zeros(outputs)? };
        // He initialization keeps the variance through layers that are followed by a ReLU.
        let deviation = (2.0 / inputs as f32).sqrt();
        parameters.weights.fill_with(|| random.normal(deviation));
        Ok(Self { name, inputs, outputs, parameters })
    }

    /// The outputs for a batch of inputs.
    fn forward(&self, pool: &HostPool, inputs: &[f32]) -> Result<PoolSlice<f32>, AllocateError> {
        let rows = inputs.len() / self.inputs;
        let mut outputs = pool.alloc_zeros(rows * self.outputs)?;
        for row in outputs.chunks_exact_mut(self.outputs) {
            row.copy_from_slice(&self.parameters.bias);
        }
        let sizes = Sizes { rows, inner: self.inputs, columns: self.outputs };
        multiply_add(inputs, &self.parameters.weights, &mut outputs, sizes);
        Ok(outputs)
    }

    /// The gradient of the parameters, given that of the outputs.
    fn parameter_gradient(
        &self,
        pool: &HostPool,
        inputs: &[f32],
        outputs: &[f32],
    ) -> Result<Parameters, AllocateError> {
        let rows = inputs.len() / self.inputs;
        let swapped_inputs = transposed(pool, inputs, self.inputs)?;
        let mut gradient = self.parameters.zeros_like()?;
        let sizes = Sizes { rows: self.inputs, inner: rows, columns: self.outputs };
        multiply_add(&swapped_inputs, outputs, &mut gradient.weights, sizes);
        for row in outputs.chunks_exact(self.outputs) {
            gradient.bias.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
        }
        Ok(gradient)
    }

    /// The gradient of the inputs, given that of the outputs.
    fn input_gradient(&self, pool: &HostPool, outputs: &[f32]) -> Result<PoolSlice<f32>, AllocateError> {
        let rows = outputs.len() / self.outputs;
        let swapped_weights = transposed(pool, &self.parameters.weights, self.outputs)?;
        let mut inputs = pool.alloc_zeros(rows * self.inputs)?;
        let sizes = Sizes { rows, inner: self.outputs, columns: self.inputs };
        multiply_add(outputs, &swapped_weights, &mut inputs, sizes);
        Ok(inputs)
    }
}

fn relu(pool: &HostPool, values: &[f32]) -> Result<PoolSlice<f32>, AllocateError> {
    let mut positive = pool.alloc_zeros::<f32>(values.len())?;
    positive.iter_mut().zip(values).for_each(|(place, value)| *place = value.max(0.0));
    Ok(positive)
}

/// What the forward pass keeps for the backward pass.
pub(crate) struct Forward {
    /// What each layer was given.
    inputs: Vec<PoolSlice<f32>>,
    logits: PoolSlice<f32>,
}

/// Layers with a ReLU between them.
pub(crate) struct Network {
    pool: HostPool,
    pub(crate) layers: Vec<Layer>,
}

impl Network {
    /// A network with `widths[0]` inputs and as many outputs as the last width says.
    pub(crate) fn new(pool: &HostPool, widths: &[usize], random: &mut Random) -> Result<Self, AllocateError> {
        let pairs = widths.windows(2).enumerate();
        let layers = pairs.map(|(number, pair)| Layer::new(pool, number + 1, pair[0], pair[1], random));
        Ok(Self { pool: pool.clone(), layers: layers.collect::<Result<_, _>>()? })
    }

    /// Runs a batch, keeping what the backward pass needs.
    pub(crate) fn forward(&self, batch: PoolSlice<f32>) -> Result<Forward, AllocateError> {
        let _forward = self.pool.scope_with("forward", Category::Activation);
        let mut inputs = vec![batch];
        loop {
            let (layer, given) = (&self.layers[inputs.len() - 1], &inputs[inputs.len() - 1]);
            let _layer = self.pool.scope(&layer.name);
            let outputs = layer.forward(&self.pool, given)?;
            if inputs.len() == self.layers.len() {
                return Ok(Forward { inputs, logits: outputs });
            }
            inputs.push(relu(&self.pool, &outputs)?);
        }
    }

    /// Runs a batch, keeping nothing but the outputs.
    pub(crate) fn predict(&self, batch: PoolSlice<f32>) -> Result<PoolSlice<f32>, AllocateError> {
        let _forward = self.pool.scope_with("forward", Category::Activation);
        let mut values = batch;
        for (number, layer) in self.layers.iter().enumerate() {
            let _layer = self.pool.scope(&layer.name);
            values = layer.forward(&self.pool, &values)?;
            if number + 1 < self.layers.len() {
                values = relu(&self.pool, &values)?;
            }
        }
        Ok(values)
    }

    /// The mean loss over the batch, and its gradient by each layer's parameters.
    pub(crate) fn backward(&self, forward: Forward, labels: &[u8]) -> Result<(f32, Vec<Parameters>), AllocateError> {
        let _backward = self.pool.scope_with("backward", Category::Gradient);
        let Forward { mut inputs, logits } = forward;
        let (loss, mut gradient) = loss_and_gradient(&self.pool, &logits, labels)?;
        drop(logits);
        let mut gradients = Vec::with_capacity(self.layers.len());
        for (number, layer) in self.layers.iter().enumerate().rev() {
            let _layer = self.pool.scope(&layer.name);
            let given = inputs.pop().expect("the forward pass kept the inputs of every layer");
            gradients.push(layer.parameter_gradient(&self.pool, &given, &gradient)?);
            if number > 0 {
                gradient = layer.input_gradient(&self.pool, &gradient)?;
                // `given` came out of a ReLU, which passes a gradient on only where its output is not 0.
                gradient
                    .iter_mut()
                    .zip(given.iter())
                    .filter(|(_, given)| **given == 0.0)
                    .for_each(|(value, _)| *value = 0.0);
            }
        }
        gradients.reverse();
        Ok((loss, gradients))
    }
}

/// The mean cross-entropy of the softmax of `logits`, and its gradient.
fn loss_and_gradient(pool: &HostPool, logits: &[f32], labels: &[u8]) -> Result<(f32, PoolSlice<f32>), AllocateError> {
    let _loss = pool.scope("loss");
    let classes = logits.len() / labels.len();
    let scale = 1.0 / labels.len() as f32;
    let mut gradient = pool.clone_htod(logits)?;
    let mut loss = 0.0;
    for (row, &label) in gradient.chunks_exact_mut(classes).zip(labels) {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let right = row[usize::from(label)];
        let sum: f32 = row.iter().map(|value| (value - most).exp()).sum();
        loss += sum.ln() + most - right;
        row.iter_mut().for_each(|value| *value = (*value - most).exp() / sum * scale);
        row[usize::from(label)] -= scale;
    }
    Ok((loss * scale, gradient))
}

/// The number of the largest of each row's values.
pub(crate) fn largest_of_each<'a>(logits: &'a [f32], classes: usize) -> impl Iterator<Item = usize> + 'a {
    logits
        .chunks_exact(classes)
        .map(|row| (1..row.len()).fold(0, |best, number| if row[number] > row[best] { number } else { best }))
}

#[cfg(test)]
mod tests {
    use vramscope_collector::{HostDevice, Settings};
    use vramscope_trace::Null;

    use super::*;

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), Null, || 0);
        let mut random = Random::new(3);
        let mut network = Network::new(&pool, &[9, 7, 6, 4], &mut random).expect("room");
        let batch: Vec<f32> = (0..5 * 9).map(|_| random.around_zero(1.0)).collect();
        let labels = [0, 3, 1, 2, 3];
        let loss_of = |network: &Network| {
            let forward = network.forward(pool.clone_htod(&batch).expect("room")).expect("room");
            network.backward(forward, &labels).expect("room")
        };
        let (_, gradients) = loss_of(&network);
        const STEP: f32 = 1e-2;
        let mut checked = 0;
        for (layer, gradient) in gradients.iter().enumerate() {
            for part in 0..2 {
                for place in 0..network.layers[layer].parameters.parts()[part].len() {
                    let mut loss_at = |offset: f32| {
                        network.layers[layer].parameters.parts_mut()[part][place] += offset;
                        let (loss, _) = loss_of(&network);
                        network.layers[layer].parameters.parts_mut()[part][place] -= offset;
                        loss
                    };
                    let difference = (loss_at(STEP) - loss_at(-STEP)) / (2.0 * STEP);
                    let gradient = gradient.parts()[part][place];
                    assert!(
                        (difference - gradient).abs() < 4e-3,
                        "layer {layer}, {place}: {gradient} but {difference}"
                    );
                    checked += 1;
                }
            }
        }
        assert_eq!(checked, 9 * 7 + 7 + 7 * 6 + 6 + 6 * 4 + 4);
    }

    #[test]
    fn prediction_and_forward_agree() {
        let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), Null, || 0);
        let network = Network::new(&pool, &[4, 8, 3], &mut Random::new(1)).expect("room");
        let batch = || pool.full(8, 0.5f32).expect("room");
        assert_eq!(network.forward(batch()).expect("room").logits[..], network.predict(batch()).expect("room")[..]);
        assert_eq!(largest_of_each(&[1.0, 3.0, 2.0, 9.0, 0.0, 9.0], 3).collect::<Vec<_>>(), [1, 0]);
    }
}
