//! Checks of the kernels for convolutions and max pooling, which read windows of images.

use super::tester::{Argument, FLOAT_PAIRS, Tester, random};
use crate::backend::Window;
use crate::dtype::DType;

/// Test cases: number of images, channels, height, width, window size, stride and padding.
const CASES: [[usize; 7]; 9] = [
    [1, 1, 1, 1, 1, 1, 0],
    [2, 3, 7, 5, 3, 1, 1],
    [1, 2, 8, 8, 2, 2, 0],
    [3, 1, 9, 6, 3, 2, 1],
    [2, 4, 10, 10, 1, 2, 0],
    [2, 3, 12, 13, 7, 2, 3],
    [1, 2, 11, 9, 2, 3, 0],
    [4, 16, 32, 32, 3, 1, 1],
    [0, 2, 4, 4, 3, 1, 1],
];

pub(super) fn check(tester: &Tester<'_>) {
    for [images, channels, height, width, kernel, stride, padding] in CASES {
        let output = [height, width].map(|len| (len + 2 * padding - kernel) / stride + 1);
        let window = Window { images, channels, input: [height, width], output, kernel, stride, padding };
        for types in FLOAT_PAIRS {
            check_columns(tester, types, &window);
            check_pool(tester, types, &window);
        }
    }
}

/// Iterates over all pixels of all windows. Yields the index of the window's output pixel in its
/// channel, the pixel's index in the window, and the pixel's index in the channel of the input
/// image (`None` in the padding).
fn window_pixels(window: &Window) -> impl Iterator<Item = (usize, usize, Option<usize>)> {
    let &Window { input: [height, width], output: [output_height, output_width], kernel, stride, padding, .. } = window;
    (0..output_height * output_width).flat_map(move |output| {
        (0..kernel * kernel).map(move |index| {
            let row = (output / output_width * stride + index / kernel).checked_sub(padding);
            let column = (output % output_width * stride + index % kernel).checked_sub(padding);
            let pixel = row.zip(column).filter(|&(row, column)| row < height && column < width);
            (output, index, pixel.map(|(row, column)| row * width + column))
        })
    })
}

/// Checks the copies between images and columns (im2col).
fn check_columns(tester: &Tester<'_>, [x_type, column_type]: [DType; 2], window: &Window) {
    let kernels = tester.kernels;
    let [input, output] = [window.input, window.output].map(|[height, width]| height * width);
    let (planes, area) = (window.images * window.channels, window.kernel * window.kernel);
    let x = random(x_type, planes * input, 4.0);
    let columns = random(column_type, planes * output * area, 4.0);
    let (mut expected_columns, mut expected_x) = (vec![0.0; columns.len()], vec![0.0; x.len()]);
    for plane in 0..planes {
        let (image, channel) = (plane / window.channels, plane % window.channels);
        for (pixel, index, input_pixel) in window_pixels(window) {
            let row = image * output + pixel;
            let column = (row * window.channels + channel) * area + index;
            if let Some(input_pixel) = input_pixel {
                expected_columns[column] = x[plane * input + input_pixel];
                expected_x[plane * input + input_pixel] += columns[column];
            }
        }
    }
    let case = format!("{x_type} {column_type} {window:?}");
    let arguments = [Argument::input(x_type, &x), Argument::output(column_type, expected_columns)];
    let name = format!("image_to_columns {case}");
    tester.run(&name, &arguments, |s| kernels.image_to_columns(s[0], s[1], window));
    let arguments = [Argument::input(column_type, &columns), Argument::output(x_type, expected_x)];
    let name = format!("columns_to_image {case}");
    tester.run(&name, &arguments, |s| kernels.columns_to_image(s[0], s[1], window));
}

/// Checks max pooling and its gradient.
fn check_pool(tester: &Tester<'_>, [x_type, y_type]: [DType; 2], window: &Window) {
    let kernels = tester.kernels;
    let [input, output] = [window.input, window.output].map(|[height, width]| height * width);
    let planes = window.images * window.channels;
    // Few different values, so that a window has its largest value more than once. All are
    // negative, so that a 0 read from outside of the image would be larger.
    let mut x: Vec<f64> = random(x_type, planes * input, 3.0).iter().map(|x| x.round() - 5.0).collect();
    // The first NaN of a window counts as the largest.
    x.iter_mut().skip(7).step_by(19).for_each(|x| *x = f64::NAN);
    let dy = random(y_type, planes * output, 4.0);
    let (mut y, mut indices) = (vec![f64::NEG_INFINITY; planes * output], vec![0.0; planes * output]);
    let mut dx = vec![0.0; x.len()];
    for plane in 0..planes {
        for (pixel, _, input_pixel) in window_pixels(window) {
            let Some(input_pixel) = input_pixel else { continue };
            let (value, result) = (x[plane * input + input_pixel], plane * output + pixel);
            if value > y[result] || value.is_nan() && !y[result].is_nan() {
                (y[result], indices[result]) = (value, input_pixel as f64);
            }
        }
        for result in plane * output..(plane + 1) * output {
            dx[plane * input + indices[result] as usize] += dy[result];
        }
    }
    let case = format!("{x_type} {y_type} {window:?}");
    let arguments = [
        Argument::input(x_type, &x),
        Argument::output(y_type, y),
        Argument::output(DType::U32, indices.clone()).within(0.0),
    ];
    tester.run(&format!("max_pool {case}"), &arguments, |s| kernels.max_pool(s[0], s[1], s[2], window));
    let arguments = [Argument::input(y_type, &dy), Argument::input(DType::U32, &indices), Argument::output(x_type, dx)];
    let name = format!("max_pool_backward {case}");
    tester.run(&name, &arguments, |s| kernels.max_pool_backward(s[0], s[1], s[2], window));
}
