//! Generated images of handwritten digits, so that the demo needs no download.

use fastrand::Rng;

use crate::random::symmetric;

/// Width and height of an image, in pixels.
pub(crate) const SIDE: usize = 28;
/// Number of pixels of an image.
pub(crate) const PIXELS: usize = SIDE * SIDE;
/// Number of different digits, 0 to 9, which are the classes of the images.
pub(crate) const CLASSES: usize = 10;

/// A point in the unit square, x to the right and y down.
type Point = (f32, f32);

/// The line that draws each digit, as x and y of its corners in order, in percent of the unit
/// square; indexed by the digit.
const STROKES: [&[u8]; CLASSES] = [
    &[50, 5, 25, 20, 18, 50, 25, 80, 50, 95, 75, 80, 82, 50, 75, 20, 50, 5],
    &[32, 25, 55, 5, 55, 95],
    &[20, 25, 32, 10, 50, 5, 70, 12, 78, 28, 68, 48, 20, 95, 82, 95],
    &[22, 12, 50, 5, 75, 18, 70, 38, 45, 48, 75, 60, 78, 80, 50, 95, 20, 86],
    &[64, 95, 64, 5, 18, 65, 84, 65],
    &[76, 5, 28, 5, 24, 45, 50, 40, 75, 52, 77, 78, 50, 95, 22, 87],
    &[70, 8, 40, 25, 24, 60, 32, 88, 55, 95, 76, 78, 70, 55, 50, 48, 27, 62],
    &[20, 5, 80, 5, 42, 95],
    &[50, 48, 28, 34, 32, 12, 50, 5, 68, 12, 72, 34, 50, 48, 22, 68, 28, 88, 50, 95, 72, 88, 78, 68, 50, 48],
    &[74, 38, 50, 52, 28, 42, 26, 18, 48, 5, 70, 14, 74, 38, 70, 70, 50, 95],
];

/// Returns the squared distance from `point` to the nearest point of the line segment from `a` to
/// `b`.
fn distance_squared(point: Point, a: Point, b: Point) -> f32 {
    let (segment, offset) = ((b.0 - a.0, b.1 - a.1), (point.0 - a.0, point.1 - a.1));
    let length_squared = segment.0 * segment.0 + segment.1 * segment.1;
    let nearest = ((offset.0 * segment.0 + offset.1 * segment.1) / length_squared.max(1e-6)).clamp(0.0, 1.0);
    let (x, y) = (offset.0 - nearest * segment.0, offset.1 - nearest * segment.1);
    x * x + y * y
}

/// Draws `digit` with random rotation, slant, size, position, line width, shape and noise. `pixels`
/// is [`SIDE`] rows of [`SIDE`] pixels, from 0 (background) to 255.
pub(crate) fn draw(digit: usize, rng: &mut Rng, pixels: &mut [u8]) {
    let size = SIDE as f32 * (0.55 + 0.25 * rng.f32());
    let (sin, cos) = symmetric(rng, 0.25).sin_cos();
    let slant = symmetric(rng, 0.25);
    let center = (SIDE as f32 / 2.0 + symmetric(rng, 3.0), SIDE as f32 / 2.0 + symmetric(rng, 3.0));
    let thickness = 0.7 + 0.9 * rng.f32();
    let mut transform = |corner: &[u8]| {
        let [x, y] = [corner[0], corner[1]].map(|percent| f32::from(percent) / 100.0);
        let (x, y) = (x - 0.5 + symmetric(rng, 0.05), y - 0.5 + symmetric(rng, 0.05));
        let x = x + slant * y;
        (center.0 + size * (x * cos - y * sin), center.1 + size * (x * sin + y * cos))
    };
    let points: Vec<Point> = STROKES[digit].chunks_exact(2).map(&mut transform).collect();
    for (index, pixel) in pixels.iter_mut().enumerate() {
        let position = ((index % SIDE) as f32 + 0.5, (index / SIDE) as f32 + 0.5);
        let distance =
            points.windows(2).map(|ends| distance_squared(position, ends[0], ends[1])).fold(f32::INFINITY, f32::min);
        let ink = (thickness + 0.5 - distance.sqrt()).clamp(0.0, 1.0);
        let noise = symmetric(rng, 0.3);
        *pixel = ((ink * 0.85 + noise).clamp(0.0, 1.0) * 255.0) as u8;
    }
}
