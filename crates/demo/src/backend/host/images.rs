//! Windows of images: the layout for convolutions, and max pooling.

use super::HostBackend;
use super::slices::{floats, floats_mut, numbers, numbers_mut};
use super::tasks::{FloatRows, Reader, Rows, SIMPLE, map_rows, parallel_rows};
use crate::backend::{ImageKernels, RawSlice, Result, Window};

impl Window {
    /// Returns how many pixels a channel has in an input image, and in an output image.
    fn pixels(&self) -> [usize; 2] {
        [self.input, self.output].map(|[height, width]| height * width)
    }

    /// Returns how many channels all images have together.
    fn planes(&self) -> usize {
        self.images * self.channels
    }

    /// Returns how many elements a row of the matrix of columns has: a window's, in all channels.
    fn column_numbers(&self) -> usize {
        self.channels * self.kernel * self.kernel
    }

    /// Iterates over the pixels in the window of the output pixel at `row` and `column`, without
    /// the padding. Yields a pixel's index in the window, and its index in the image's channel.
    fn visible(&self, row: usize, column: usize) -> impl Iterator<Item = (usize, usize)> {
        let [height, width] = self.input;
        let (rows, columns) = (self.range(row, height), self.range(column, width));
        rows.flat_map(move |kernel_row| {
            let input_row = row * self.stride + kernel_row - self.padding;
            columns.clone().map(move |kernel_column| {
                let input_column = column * self.stride + kernel_column - self.padding;
                (kernel_row * self.kernel + kernel_column, input_row * width + input_column)
            })
        })
    }

    /// Returns the rows of the window that lie in the image, for the output row `position` and an
    /// image of `len` rows. Serves columns as well.
    fn range(&self, position: usize, len: usize) -> std::ops::Range<usize> {
        let start = self.padding.saturating_sub(position * self.stride);
        let end = (len + self.padding).saturating_sub(position * self.stride).min(self.kernel);
        start..end.max(start)
    }
}

impl ImageKernels for HostBackend {
    fn image_to_columns(&self, x: RawSlice<'_>, columns: RawSlice<'_>, window: &Window) -> Result {
        let [input, _] = window.pixels();
        assert_columns(x, columns, window);
        let image = window.channels * input;
        let from = floats(x);
        // A task computes rows of output pixels.
        let [output_rows, output_columns] = window.output;
        let (row, row_numbers) = (window.column_numbers(), output_columns * window.column_numbers());
        let result = FloatRows::new(floats_mut(columns, &[x]), row_numbers);
        parallel_rows(window.images * output_rows, row_numbers, SIMPLE, result, |units, result| {
            let (mut reader, first) = (Reader::new(from), units.start);
            map_rows(units, &[], result, |unit, [], result| {
                let (index, output_row) = ((first + unit) / output_rows, (first + unit) % output_rows);
                let pixels = reader.read(index * image..(index + 1) * image);
                result.fill(0.0);
                for (output_column, result) in result.chunks_exact_mut(row.max(1)).enumerate() {
                    let channels = result.chunks_exact_mut(window.kernel * window.kernel);
                    for (channel, result) in pixels.chunks_exact(input.max(1)).zip(channels) {
                        for (kernel_index, pixel) in window.visible(output_row, output_column) {
                            result[kernel_index] = channel[pixel];
                        }
                    }
                }
            });
        });
        Ok(())
    }

    fn columns_to_image(&self, columns: RawSlice<'_>, x: RawSlice<'_>, window: &Window) -> Result {
        let [input, output] = window.pixels();
        assert_columns(x, columns, window);
        let row = window.column_numbers();
        let (from, area) = (floats(columns), window.kernel * window.kernel);
        let result = FloatRows::new(floats_mut(x, &[columns]), input);
        parallel_rows(window.planes(), output * area, SIMPLE, result, |units, result| {
            let (mut reader, first) = (Reader::new(from), units.start);
            map_rows(units, &[], result, |plane, [], sums| {
                let (image, channel) = ((first + plane) / window.channels, (first + plane) % window.channels);
                sums.fill(0.0);
                for pixel in 0..output {
                    let start = (image * output + pixel) * row + channel * area;
                    let numbers = reader.read(start..start + area);
                    for (index, input) in window.visible(pixel / window.output[1], pixel % window.output[1]) {
                        sums[input] += numbers[index];
                    }
                }
            });
        });
        Ok(())
    }

    fn max_pool(&self, x: RawSlice<'_>, y: RawSlice<'_>, indices: RawSlice<'_>, window: &Window) -> Result {
        let [input, output] = window.pixels();
        assert_planes(x, y, indices, window);
        let from = floats(x);
        let results = (
            FloatRows::new(floats_mut(y, &[x, indices]), output),
            Rows::new(numbers_mut::<u32>(indices, &[x]), output),
        );
        parallel_rows(window.planes(), input, SIMPLE, results, |units, (y, mut indices)| {
            let (mut reader, first) = (Reader::new(from), units.start);
            map_rows(units, &[], y, |plane, [], y| {
                let pixels = reader.read((first + plane) * input..(first + plane + 1) * input);
                for (output, (y, index)) in y.iter_mut().zip(indices.row(plane)).enumerate() {
                    let visible = window.visible(output / window.output[1], output % window.output[1]);
                    let mut candidates = visible.map(|(_, pixel)| pixel);
                    let mut largest = candidates.next().expect("every window has a pixel of the image");
                    for pixel in candidates {
                        if pixels[pixel] > pixels[largest] || pixels[pixel].is_nan() && !pixels[largest].is_nan() {
                            largest = pixel;
                        }
                    }
                    (*y, *index) = (pixels[largest], largest as u32);
                }
            });
        });
        Ok(())
    }

    fn max_pool_backward(&self, dy: RawSlice<'_>, indices: RawSlice<'_>, dx: RawSlice<'_>, window: &Window) -> Result {
        let [input, output] = window.pixels();
        assert_planes(dx, dy, indices, window);
        let (from, positions) = (floats(dy), numbers::<u32>(indices));
        let result = FloatRows::new(floats_mut(dx, &[dy, indices]), input);
        parallel_rows(window.planes(), input, SIMPLE, result, |units, result| {
            let (mut reader, first) = (Reader::new(from), units.start);
            map_rows(units, &[], result, |plane, [], sums| {
                let range = (first + plane) * output..(first + plane + 1) * output;
                sums.fill(0.0);
                for (index, dy) in positions[range.clone()].iter().zip(reader.read(range)) {
                    sums[*index as usize] += dy;
                }
            });
        });
        Ok(())
    }
}

/// Asserts the lengths of the images `x` and of their columns.
fn assert_columns(x: RawSlice<'_>, columns: RawSlice<'_>, window: &Window) {
    let [input, output] = window.pixels();
    assert_eq!(x.len(), window.planes() * input, "the images have the given shape");
    let numbers = window.images * output * window.column_numbers();
    assert_eq!(columns.len(), numbers, "there is a row of columns for each output pixel");
}

/// Asserts the lengths of the images `x`, and of the pooled images `y` and their indices.
fn assert_planes(x: RawSlice<'_>, y: RawSlice<'_>, indices: RawSlice<'_>, window: &Window) {
    let [input, output] = window.pixels();
    assert_eq!(x.len(), window.planes() * input, "the images have the given shape");
    assert!(y.len() == window.planes() * output && indices.len() == y.len(), "the pooled images have the given shape");
}
