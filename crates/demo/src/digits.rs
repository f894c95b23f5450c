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

/// The line that draws each digit, as its corners in order; indexed by the digit.
const STROKES: [&[Point]; CLASSES] = [
    &[
        (0.5, 0.05),
        (0.25, 0.2),
        (0.18, 0.5),
        (0.25, 0.8),
        (0.5, 0.95),
        (0.75, 0.8),
        (0.82, 0.5),
        (0.75, 0.2),
        (0.5, 0.05),
    ],
    &[(0.32, 0.25), (0.55, 0.05), (0.55, 0.95)],
    &[(0.2, 0.25), (0.32, 0.1), (0.5, 0.05), (0.7, 0.12), (0.78, 0.28), (0.68, 0.48), (0.2, 0.95), (0.82, 0.95)],
    &[
        (0.22, 0.12),
        (0.5, 0.05),
        (0.75, 0.18),
        (0.7, 0.38),
        (0.45, 0.48),
        (0.75, 0.6),
        (0.78, 0.8),
        (0.5, 0.95),
        (0.2, 0.86),
    ],
    &[(0.64, 0.95), (0.64, 0.05), (0.18, 0.65), (0.84, 0.65)],
    &[(0.76, 0.05), (0.28, 0.05), (0.24, 0.45), (0.5, 0.4), (0.75, 0.52), (0.77, 0.78), (0.5, 0.95), (0.22, 0.87)],
    &[
        (0.7, 0.08),
        (0.4, 0.25),
        (0.24, 0.6),
        (0.32, 0.88),
        (0.55, 0.95),
        (0.76, 0.78),
        (0.7, 0.55),
        (0.5, 0.48),
        (0.27, 0.62),
    ],
    &[(0.2, 0.05), (0.8, 0.05), (0.42, 0.95)],
    &[
        (0.5, 0.48),
        (0.28, 0.34),
        (0.32, 0.12),
        (0.5, 0.05),
        (0.68, 0.12),
        (0.72, 0.34),
        (0.5, 0.48),
        (0.22, 0.68),
        (0.28, 0.88),
        (0.5, 0.95),
        (0.72, 0.88),
        (0.78, 0.68),
        (0.5, 0.48),
    ],
    &[
        (0.74, 0.38),
        (0.5, 0.52),
        (0.28, 0.42),
        (0.26, 0.18),
        (0.48, 0.05),
        (0.7, 0.14),
        (0.74, 0.38),
        (0.7, 0.7),
        (0.5, 0.95),
    ],
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
    let mut transform = |&(x, y): &Point| {
        let (x, y) = (x - 0.5 + symmetric(rng, 0.05), y - 0.5 + symmetric(rng, 0.05));
        let x = x + slant * y;
        (center.0 + size * (x * cos - y * sin), center.1 + size * (x * sin + y * cos))
    };
    let points: Vec<Point> = STROKES[digit].iter().map(&mut transform).collect();
    for (index, pixel) in pixels.iter_mut().enumerate() {
        let position = ((index % SIDE) as f32 + 0.5, (index / SIDE) as f32 + 0.5);
        let distance =
            points.windows(2).map(|ends| distance_squared(position, ends[0], ends[1])).fold(f32::INFINITY, f32::min);
        let ink = (thickness + 0.5 - distance.sqrt()).clamp(0.0, 1.0);
        let noise = symmetric(rng, 0.3);
        *pixel = ((ink * 0.85 + noise).clamp(0.0, 1.0) * 255.0) as u8;
    }
}
