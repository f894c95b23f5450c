//! Steps of Adam, 8-bit Adam and SGD, and the unscaling of gradients, on the host.

use std::sync::atomic::{AtomicBool, Ordering};

use super::HostBackend;
use super::quantization::{MAX_SIGNED, signed_code};
use super::slices::{floats, floats_mut, numbers_mut};
use super::tasks::{COSTLY, FloatRows, Reader, Rows, SIMPLE, map_rows, parallel};
use super::vector::max;
use crate::backend::{AdamStep, OptimizerKernels, QUANTIZED_BLOCK, QuantizedMoments, RawSlice, Result, SgdStep};

/// The largest 8-bit code of a second moment.
const MAX_UNSIGNED: f32 = 255.0;

/// Number of elements that are converted and computed at once. They fit into the L1 cache.
const BLOCK: usize = 1024;

impl AdamStep {
    /// Updates a parameter and its moments.
    #[inline(always)]
    fn apply(&self, parameter: &mut f32, gradient: f32, mean: &mut f32, variance: &mut f32) {
        *mean = self.beta1 * *mean + (1.0 - self.beta1) * gradient;
        *variance = self.beta2 * *variance + (1.0 - self.beta2) * gradient * gradient;
        let update = self.rate * *mean / (variance.sqrt() * self.root_scale + self.epsilon);
        *parameter = *parameter * (1.0 - self.decay) - update;
    }
}

impl OptimizerKernels for HostBackend {
    fn adam(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        [mean, variance]: [RawSlice<'_>; 2],
        step: &AdamStep,
    ) -> Result {
        let len = parameter.len();
        let has_len = |slice: &RawSlice<'_>| slice.len() == len;
        assert!([gradient, mean, variance].iter().all(has_len), "a parameter's tensors have one length");
        let gradients = floats(gradient);
        let results = (
            Rows::new(numbers_mut::<f32>(parameter, &[gradient, mean, variance]), BLOCK),
            Rows::new(numbers_mut::<f32>(mean, &[gradient, variance]), BLOCK),
            Rows::new(numbers_mut::<f32>(variance, &[gradient]), BLOCK),
        );
        parallel(len.div_ceil(BLOCK), COSTLY / BLOCK, results, |units, (mut parameters, mut means, mut variances)| {
            let (mut reader, first) = (Reader::new(gradients), units.start);
            for block in units {
                let gradients = reader.read(block * BLOCK..len.min((block + 1) * BLOCK));
                let moments = means.row(block - first).iter_mut().zip(variances.row(block - first));
                let parameters = parameters.row(block - first).iter_mut().zip(gradients);
                for ((parameter, gradient), (mean, variance)) in parameters.zip(moments) {
                    step.apply(parameter, *gradient, mean, variance);
                }
            }
        });
        Ok(())
    }

    fn adam_8bit(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        moments: QuantizedMoments<'_>,
        step: &AdamStep,
    ) -> Result {
        let QuantizedMoments { mean, mean_scales, variance, variance_scales } = moments;
        let (len, blocks) = (parameter.len(), parameter.len().div_ceil(QUANTIZED_BLOCK));
        let has_len = |slice: &RawSlice<'_>| slice.len() == len;
        assert!([gradient, mean, variance].iter().all(has_len), "a parameter's tensors have one length");
        let scales_match = mean_scales.len() == blocks && variance_scales.len() == blocks;
        assert!(scales_match, "there is one scale a block");
        let gradients = floats(gradient);
        let others = [gradient, mean, mean_scales, variance, variance_scales];
        let means = (
            Rows::new(numbers_mut::<i8>(mean, &[gradient, mean_scales, variance, variance_scales]), QUANTIZED_BLOCK),
            Rows::new(numbers_mut::<f32>(mean_scales, &[gradient, variance, variance_scales]), 1),
        );
        let variances = (
            Rows::new(numbers_mut::<u8>(variance, &[gradient, variance_scales]), QUANTIZED_BLOCK),
            Rows::new(numbers_mut::<f32>(variance_scales, &[gradient]), 1),
        );
        let results = (Rows::new(numbers_mut::<f32>(parameter, &others), QUANTIZED_BLOCK), means, variances);
        parallel(blocks, COSTLY / QUANTIZED_BLOCK, results, |units, (mut parameters, means, variances)| {
            let ((mut mean_codes, mean_scales), (mut variance_codes, variance_scales)) = (means, variances);
            let (mut reader, first) = (Reader::new(gradients), units.start);
            let scales = mean_scales.numbers.iter_mut().zip(variance_scales.numbers);
            for (unit, (mean_scale, variance_scale)) in units.zip(scales) {
                let gradients = reader.read(unit * QUANTIZED_BLOCK..len.min((unit + 1) * QUANTIZED_BLOCK));
                let mean_codes = mean_codes.row(unit - first);
                let variance_codes = variance_codes.row(unit - first);
                let (mut means, mut variances) = ([0.0; QUANTIZED_BLOCK], [0.0; QUANTIZED_BLOCK]);
                for (mean, code) in means.iter_mut().zip(&*mean_codes) {
                    *mean = *mean_scale * f32::from(*code) / MAX_SIGNED;
                }
                for (variance, code) in variances.iter_mut().zip(&*variance_codes) {
                    let root = f32::from(*code) / MAX_UNSIGNED;
                    *variance = *variance_scale * root * root;
                }
                let moments = means.iter_mut().zip(&mut variances);
                let parameters = parameters.row(unit - first).iter_mut().zip(gradients);
                for ((parameter, gradient), (mean, variance)) in parameters.zip(moments) {
                    step.apply(parameter, *gradient, mean, variance);
                }
                let (means, variances) = (&means[..gradients.len()], &variances[..gradients.len()]);
                *mean_scale = max(means, f32::abs);
                *variance_scale = max(variances, |variance| variance);
                for (code, mean) in mean_codes.iter_mut().zip(means) {
                    *code = signed_code(share(*mean, *mean_scale) * MAX_SIGNED);
                }
                for (code, variance) in variance_codes.iter_mut().zip(variances) {
                    let root = share(*variance, *variance_scale).sqrt() * MAX_UNSIGNED;
                    let truncated = root as u8;
                    *code = truncated.saturating_add(u8::from(f32::from(truncated) < root));
                }
            }
        });
        Ok(())
    }

    fn sgd(
        &self,
        parameter: RawSlice<'_>,
        gradient: RawSlice<'_>,
        buffer: Option<RawSlice<'_>>,
        step: &SgdStep,
    ) -> Result {
        let &SgdStep { rate, momentum } = step;
        let has_len = |slice: RawSlice<'_>| slice.len() == parameter.len();
        assert!(has_len(gradient) && buffer.is_none_or(has_len), "a parameter's tensors have one length");
        let gradients = floats(gradient);
        let blocks = parameter.len().div_ceil(BLOCK);
        let parameters = match buffer {
            None => floats_mut(parameter, &[gradient]),
            Some(buffer) => {
                let buffers = FloatRows::new(floats_mut(buffer, &[gradient, parameter]), BLOCK);
                let inputs = [None, Some(gradients)];
                parallel(blocks, SIMPLE / BLOCK, buffers, |units, buffers| {
                    map_rows(units, &inputs, buffers, |_, [old, gradients], buffers| {
                        for ((buffer, old), gradient) in buffers.iter_mut().zip(old).zip(gradients) {
                            *buffer = momentum * old + gradient;
                        }
                    });
                });
                floats_mut(parameter, &[gradient, buffer])
            }
        };
        let inputs = [None, Some(buffer.map_or(gradients, floats))];
        parallel(blocks, SIMPLE / BLOCK, FloatRows::new(parameters, BLOCK), |units, results| {
            map_rows(units, &inputs, results, |_, [old, updates], parameters| {
                for ((parameter, old), update) in parameters.iter_mut().zip(old).zip(updates) {
                    *parameter = old - rate * update;
                }
            });
        });
        Ok(())
    }

    fn unscale(&self, gradient: RawSlice<'_>, scale: f32, found_infinite: RawSlice<'_>) -> Result {
        assert_eq!(found_infinite.len(), 1, "the flag is one number");
        let found = AtomicBool::new(false);
        let results = FloatRows::new(floats_mut(gradient, &[found_infinite]), BLOCK);
        parallel(gradient.len().div_ceil(BLOCK), SIMPLE / BLOCK, results, |units, results| {
            map_rows(units, &[None], results, |_, [old], gradients| {
                let mut is_finite = true;
                for (gradient, old) in gradients.iter_mut().zip(old) {
                    is_finite &= old.abs() < f32::INFINITY;
                    *gradient = old * scale;
                }
                if !is_finite {
                    found.store(true, Ordering::Relaxed);
                }
            });
        });
        if found.into_inner() {
            numbers_mut::<u32>(found_infinite, &[gradient])[0] = 1;
        }
        Ok(())
    }
}

/// Returns `value / largest`, where `largest` is the largest value of the block; 0 if that is 0.
#[inline(always)]
fn share(value: f32, largest: f32) -> f32 {
    if largest > 0.0 { value / largest } else { 0.0 }
}
