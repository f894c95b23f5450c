//! Checks of the kernels of Adam, 8-bit Adam, SGD and the unscaling of gradients.

use super::tester::{Argument, FLOAT_PAIRS, FLOATS, Tester, all_rounded, random};
use crate::backend::{AdamStep, QUANTIZED_BLOCK, QuantizedMoments, SgdStep};
use crate::dtype::DType;

/// Tensor lengths near the sizes of quantized blocks and blocks of threads.
const LENGTHS: [usize; 6] = [0, 1, 255, 257, 5003, 200_000];

/// Steps of Adam whose factors `f32` represents exactly, so that kernel and reference in `f64` use
/// equal factors.
const STEPS: [AdamStep; 2] = [
    AdamStep { rate: 0.0625, decay: 0.0, beta1: 0.875, beta2: 0.984_375, epsilon: 1e-8, root_scale: 2.0 },
    AdamStep { rate: 0.5, decay: 0.015_625, beta1: 0.0, beta2: 0.5, epsilon: 0.25, root_scale: 1.0 },
];

pub(super) fn check(tester: &Tester<'_>) {
    for (gradient_type, len) in FLOATS.iter().flat_map(|dtype| LENGTHS.map(|len| (*dtype, len))) {
        for step in &STEPS {
            check_adam(tester, gradient_type, len, step);
            check_adam_8bit(tester, gradient_type, len, step);
        }
        check_unscale(tester, gradient_type, len);
    }
    for ([gradient_type, parameter_type], len) in FLOAT_PAIRS.iter().flat_map(|pair| LENGTHS.map(|len| (*pair, len))) {
        check_sgd(tester, gradient_type, parameter_type, len);
    }
}

/// Returns parameter, mean and variance after a step of Adam, computed in `f64`.
fn adam_step(step: &AdamStep, [parameter, gradient, mean, variance]: [f64; 4]) -> [f64; 3] {
    let [beta1, beta2] = [step.beta1, step.beta2].map(f64::from);
    let mean = beta1 * mean + (1.0 - beta1) * gradient;
    let variance = beta2 * variance + (1.0 - beta2) * gradient * gradient;
    let root = variance.sqrt() * f64::from(step.root_scale) + f64::from(step.epsilon);
    [parameter * (1.0 - f64::from(step.decay)) - f64::from(step.rate) * mean / root, mean, variance]
}

fn check_adam(tester: &Tester<'_>, gradient_type: DType, len: usize, step: &AdamStep) {
    let parameters = random(DType::F32, len, 1.0);
    let gradients = random(gradient_type, len, 2.0);
    let means: Vec<f64> = parameters.iter().map(|x| -0.5 * x).collect();
    let variances: Vec<f64> = parameters.iter().map(|x| 0.25 * x.abs() + 0.125).collect();
    let variances = all_rounded(DType::F32, &variances);
    let (mut new_parameters, mut new_means, mut new_variances) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..len {
        let before = [parameters[index], gradients[index], means[index], variances[index]];
        let [parameter, mean, variance] = adam_step(step, before);
        new_parameters.push(parameter);
        new_means.push(mean);
        new_variances.push(variance);
    }
    let arguments = [
        Argument::in_place(DType::F32, &parameters, new_parameters),
        Argument::input(gradient_type, &gradients),
        Argument::in_place(DType::F32, &means, new_means),
        Argument::in_place(DType::F32, &variances, new_variances),
    ];
    let case = format!("adam {gradient_type} {len} {step:?}");
    tester.run(&case, &arguments, |s| tester.kernels.adam(s[0], s[1], [s[2], s[3]], step));
}

fn check_adam_8bit(tester: &Tester<'_>, gradient_type: DType, len: usize, step: &AdamStep) {
    let blocks = len.div_ceil(QUANTIZED_BLOCK);
    let parameters = random(DType::F32, len, 1.0);
    let mut gradients = random(gradient_type, len, 2.0);
    // Blocks have small gradients among large ones. The last block's gradients and moments are 0.
    gradients.iter_mut().step_by(3).for_each(|gradient| *gradient /= 1024.0);
    let gradients = &mut all_rounded(gradient_type, &gradients);
    let mut mean_codes: Vec<f64> = random(DType::I8, len, 127.0);
    mean_codes.iter_mut().step_by(2).for_each(|code| *code = -*code);
    let mut variance_codes: Vec<f64> = random(DType::U8, len, 256.0);
    let (mut mean_scales, mut variance_scales) = (vec![0.5; blocks], vec![0.25; blocks]);
    if blocks > 1 {
        let start = (blocks - 1) * QUANTIZED_BLOCK;
        for values in [&mut *gradients, &mut mean_codes, &mut variance_codes] {
            values[start..].fill(0.0);
        }
        (mean_scales[blocks - 1], variance_scales[blocks - 1]) = (0.0, 0.0);
    }
    let mut after = Vec::new();
    for index in 0..len {
        let block = index / QUANTIZED_BLOCK;
        let mean = mean_scales[block] * mean_codes[index] / 127.0;
        let variance = variance_scales[block] * (variance_codes[index] / 255.0).powi(2);
        after.push(adam_step(step, [parameters[index], gradients[index], mean, variance]));
    }
    let largest = |moment: usize| -> Vec<f64> {
        let blocks = after.chunks(QUANTIZED_BLOCK);
        blocks.map(|block| block.iter().fold(0.0, |largest: f64, after| largest.max(after[moment].abs()))).collect()
    };
    let (new_mean_scales, new_variance_scales) = (largest(1), largest(2));
    let share = |index: usize, moment: usize, scales: &[f64]| {
        let scale = scales[index / QUANTIZED_BLOCK];
        if scale > 0.0 { after[index][moment] / scale } else { 0.0 }
    };
    // The exact means are not rounded: a code may differ from them by at most 1/2.
    let new_means = (0..len).map(|index| 127.0 * share(index, 1, &new_mean_scales)).collect();
    // A code is rounded up: it differs from the exact value plus 1/2 by at most 1/2, and is 0 only
    // for 0.
    let root = |index| 255.0 * share(index, 2, &new_variance_scales).sqrt();
    let new_variances = (0..len).map(root).map(|root| if root > 0.0 { (root + 0.5f64).min(255.0) } else { 0.0 });
    let new_parameters = after.iter().map(|after| after[0]).collect();
    let arguments = [
        Argument::in_place(DType::F32, &parameters, new_parameters),
        Argument::input(gradient_type, gradients),
        Argument::in_place(DType::I8, &mean_codes, new_means).within(0.501),
        Argument::in_place(DType::F32, &mean_scales, new_mean_scales),
        Argument::in_place(DType::U8, &variance_codes, new_variances.collect()).within(0.501),
        Argument::in_place(DType::F32, &variance_scales, new_variance_scales),
    ];
    tester.run(&format!("adam_8bit {gradient_type} {len} {step:?}"), &arguments, |s| {
        let [mean, mean_scales, variance, variance_scales] = [s[2], s[3], s[4], s[5]];
        let moments = QuantizedMoments { mean, mean_scales, variance, variance_scales };
        tester.kernels.adam_8bit(s[0], s[1], moments, step)
    });
}

fn check_sgd(tester: &Tester<'_>, gradient_type: DType, parameter_type: DType, len: usize) {
    let kernels = tester.kernels;
    let step = SgdStep { rate: 0.0625, momentum: 0.875 };
    let [rate, momentum] = [step.rate, step.momentum].map(f64::from);
    let parameters = random(parameter_type, len, 1.0);
    let gradients = random(gradient_type, len, 2.0);
    let buffers: Vec<f64> = parameters.iter().map(|x| -2.0 * x).collect();
    let new_buffers: Vec<f64> = buffers.iter().zip(&gradients).map(|(buffer, g)| momentum * buffer + g).collect();
    let with_buffer = parameters.iter().zip(&new_buffers).map(|(x, buffer)| x - rate * buffer).collect();
    let without_buffer = parameters.iter().zip(&gradients).map(|(x, g)| x - rate * g).collect();
    // A kernel may update the parameter by the buffer before or after the buffer is rounded.
    let tolerance = if parameter_type == DType::F32 { 1e-6 } else { 2e-3 };
    let arguments = [
        Argument::in_place(parameter_type, &parameters, with_buffer).within(tolerance),
        Argument::input(gradient_type, &gradients),
        Argument::in_place(parameter_type, &buffers, new_buffers),
    ];
    let case = format!("sgd {parameter_type} {gradient_type} {len} {step:?}");
    tester.run(&case, &arguments, |s| kernels.sgd(s[0], s[1], Some(s[2]), &step));
    let arguments =
        [Argument::in_place(parameter_type, &parameters, without_buffer), Argument::input(gradient_type, &gradients)];
    tester.run(&format!("{case} without buffer"), &arguments, |s| kernels.sgd(s[0], s[1], None, &step));
}

fn check_unscale(tester: &Tester<'_>, dtype: DType, len: usize) {
    let finite = random(dtype, len, 100.0);
    for (special, flag) in [(None, 0.0), (None, 1.0), (Some(f64::INFINITY), 0.0), (Some(f64::NAN), 0.0)] {
        let mut values = finite.clone();
        let mut new_flag = flag;
        if let (Some(special), Some(last)) = (special, values.last_mut()) {
            *last = special;
            new_flag = 1.0;
        }
        let scaled = values.iter().map(|value| value * 0.25).collect();
        let arguments = [
            Argument::in_place(dtype, &values, scaled),
            Argument::in_place(DType::U32, &[flag], vec![new_flag]).within(0.0),
        ];
        let case = format!("unscale {dtype} {len} {special:?}");
        tester.run(&case, &arguments, |s| tester.kernels.unscale(s[0], 0.25, s[1]));
    }
}
