//! Batch norm on the host.

use super::HostBackend;
use super::slices::{Floats, floats, floats_mut, numbers, numbers_mut};
use super::tasks::{COSTLY, FloatRows, Reader, Rows, map_rows, parallel_rows};
use super::vector::{sum, sum_pairs};
use crate::backend::{BatchNormKernels, ChannelNorm, Norm, NormBackward, RawSlice, Result};

impl ChannelNorm {
    /// Returns how many pixels a channel has in all images together.
    fn channel_pixels(&self) -> usize {
        self.images * self.pixels
    }

    /// Iterates over the images. Yields the range of element indices of channel `channel`.
    fn planes(&self, channel: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..self.images).map(move |image| {
            let start = (image * self.channels + channel) * self.pixels;
            start..start + self.pixels
        })
    }

    /// Asserts that each tensor of `images` has one element per pixel and channel, and each tensor
    /// of `channels` the given number of elements per channel.
    fn assert_lengths<'a>(
        &self,
        images: impl IntoIterator<Item = RawSlice<'a>>,
        channels: impl IntoIterator<Item = (RawSlice<'a>, usize)>,
    ) {
        let len = self.images * self.channels * self.pixels;
        assert!(images.into_iter().all(|slice| slice.len() == len), "the images have the given shape");
        for (slice, numbers) in channels {
            assert_eq!(slice.len(), numbers * self.channels, "there are {numbers} numbers a channel");
        }
    }
}

impl BatchNormKernels for HostBackend {
    fn batch_norm(&self, norm: &Norm<'_>, shape: &ChannelNorm) -> Result {
        let &Norm { x, weight, bias, y, statistics } = norm;
        shape.assert_lengths([x, y], [(weight, 1), (bias, 1), (statistics, 2)]);
        let from = floats(x);
        let result = FloatRows::new(floats_mut(y, &[x, weight, bias, statistics]), shape.pixels);
        let statistics = numbers_mut::<f32>(statistics, &[x, weight, bias]);
        let (weight, bias) = (numbers::<f32>(weight), numbers::<f32>(bias));
        let results = Rows::new(&mut *statistics, 2);
        parallel_rows(shape.channels, shape.channel_pixels(), COSTLY, results, |units, mut results| {
            for (row, channel) in units.enumerate() {
                results.row(row).copy_from_slice(&channel_statistics(from, channel, shape));
            }
        });
        let statistics = &*statistics;
        parallel_rows(shape.images * shape.channels, shape.pixels, COSTLY, result, |units, result| {
            let first = units.start;
            map_rows(units, &[Some(from)], result, |row, [x], y| {
                let channel = (first + row) % shape.channels;
                let [mean, inverse] = [statistics[2 * channel], statistics[2 * channel + 1]];
                let (weight, bias) = (weight[channel], bias[channel]);
                for (y, x) in y.iter_mut().zip(x) {
                    *y = (x - mean) * inverse * weight + bias;
                }
            });
        });
        Ok(())
    }

    fn batch_norm_backward(&self, norm: &NormBackward<'_>, shape: &ChannelNorm) -> Result {
        let &NormBackward { x, dy, weight, statistics, dx, d_weight, d_bias } = norm;
        shape.assert_lengths([x, dy, dx], [(weight, 1), (d_weight, 1), (d_bias, 1), (statistics, 2)]);
        let inputs = [Some(floats(x)), Some(floats(dy))];
        let result = FloatRows::new(floats_mut(dx, &[x, dy, weight, statistics]), shape.pixels);
        let d_weight_numbers = numbers_mut::<f32>(d_weight, &[x, dy, weight, statistics, dx]);
        let d_bias_numbers = numbers_mut::<f32>(d_bias, &[x, dy, weight, statistics, dx, d_weight]);
        let (weight, statistics) = (numbers::<f32>(weight), numbers::<f32>(statistics));
        let results = (Rows::new(&mut *d_weight_numbers, 1), Rows::new(&mut *d_bias_numbers, 1));
        let (x, dy) = (floats(x), floats(dy));
        parallel_rows(shape.channels, shape.channel_pixels(), COSTLY, results, |units, (d_weight, d_bias)| {
            let (mut x_reader, mut dy_reader) = (Reader::new(x), Reader::new(dy));
            for (channel, (d_weight, d_bias)) in units.zip(d_weight.numbers.iter_mut().zip(d_bias.numbers)) {
                let [mean, inverse] = [statistics[2 * channel], statistics[2 * channel + 1]];
                (*d_weight, *d_bias) = (0.0, 0.0);
                for plane in shape.planes(channel) {
                    let (x, dy) = (x_reader.read(plane.clone()), dy_reader.read(plane));
                    *d_weight += sum_pairs(dy, x, |dy, x| dy * ((x - mean) * inverse));
                    *d_bias += sum(dy, |dy| dy);
                }
            }
        });
        let (d_weight, d_bias) = (&*d_weight_numbers, &*d_bias_numbers);
        parallel_rows(shape.images * shape.channels, shape.pixels, COSTLY, result, |units, result| {
            let (first, share) = (units.start, 1.0 / shape.channel_pixels() as f32);
            map_rows(units, &inputs, result, |row, [x, dy], dx| {
                let channel = (first + row) % shape.channels;
                let [mean, inverse] = [statistics[2 * channel], statistics[2 * channel + 1]];
                let (average, projection) = (d_bias[channel] * share, d_weight[channel] * share);
                let factor = weight[channel] * inverse;
                for ((dx, x), dy) in dx.iter_mut().zip(x).zip(dy) {
                    *dx = factor * (dy - average - (x - mean) * inverse * projection);
                }
            });
        });
        Ok(())
    }
}

/// Returns the mean of a channel, and the channel's `1 / sqrt(variance + epsilon)`.
fn channel_statistics(x: Floats<'_>, channel: usize, shape: &ChannelNorm) -> [f32; 2] {
    let (mut reader, count) = (Reader::new(x), shape.channel_pixels() as f32);
    let mut total = 0.0;
    for plane in shape.planes(channel) {
        total += sum(reader.read(plane), |x| x);
    }
    let mean = total / count;
    let mut squares = 0.0;
    for plane in shape.planes(channel) {
        squares += sum(reader.read(plane), |x| (x - mean) * (x - mean));
    }
    [mean, 1.0 / (squares / count + shape.epsilon).sqrt()]
}
