//! Handwritten-looking digits, drawn and not loaded, so that the demo needs no download.

use crate::random::Random;

/// Pixels on a side.
pub(crate) const SIDE: usize = 28;
/// Pixels of a digit.
pub(crate) const PIXELS: usize = SIDE * SIDE;
/// How many different digits there are.
pub(crate) const CLASSES: usize = 10;

/// A point of a stroke; the digit fills the unit square, y pointing down.
type Point = (f32, f32);

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

/// The square of the distance from `point` to the line from `a` to `b`.
fn distance_squared(point: Point, a: Point, b: Point) -> f32 {
    let (along, to) = ((b.0 - a.0, b.1 - a.1), (point.0 - a.0, point.1 - a.1));
    let length_squared = along.0 * along.0 + along.1 * along.1;
    let part = ((to.0 * along.0 + to.1 * along.1) / length_squared.max(1e-6)).clamp(0.0, 1.0);
    let (x, y) = (to.0 - part * along.0, to.1 - part * along.1);
    x * x + y * y
}

/// Draws a `digit` into `pixels`, each time another way: turned, slanted, larger or smaller, off center, with an unsteady hand
/// and on dirty paper.
pub(crate) fn draw(digit: usize, random: &mut Random, pixels: &mut [u8]) {
    let size = SIDE as f32 * (0.55 + 0.25 * random.unit());
    let (sin, cos) = random.around_zero(0.25).sin_cos();
    let slant = random.around_zero(0.25);
    let center = (SIDE as f32 / 2.0 + random.around_zero(3.0), SIDE as f32 / 2.0 + random.around_zero(3.0));
    let thickness = 0.7 + 0.9 * random.unit();
    let mut place = |&(x, y): &Point| {
        let (x, y) = (x - 0.5 + random.around_zero(0.05), y - 0.5 + random.around_zero(0.05));
        let x = x + slant * y;
        (center.0 + size * (x * cos - y * sin), center.1 + size * (x * sin + y * cos))
    };
    let points: Vec<Point> = STROKES[digit].iter().map(&mut place).collect();
    for (number, pixel) in pixels.iter_mut().enumerate() {
        let at = ((number % SIDE) as f32 + 0.5, (number / SIDE) as f32 + 0.5);
        let nearest =
            points.windows(2).map(|ends| distance_squared(at, ends[0], ends[1])).fold(f32::INFINITY, f32::min);
        let ink = (thickness + 0.5 - nearest.sqrt()).clamp(0.0, 1.0);
        let dirt = random.around_zero(0.3);
        *pixel = ((ink * 0.85 + dirt).clamp(0.0, 1.0) * 255.0) as u8;
    }
}
