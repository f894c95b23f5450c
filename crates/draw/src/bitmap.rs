//! An RGBA picture in memory, and functions that draw pixels and rectangles on it.

/// An opaque color: red, green and blue from 0 to 255.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Color {
    /// Red.
    pub r: u8,
    /// Green.
    pub g: u8,
    /// Blue.
    pub b: u8,
}

impl Color {
    /// Creates a color from `0xRRGGBB`.
    pub const fn hex(value: u32) -> Self {
        Self { r: (value >> 16) as u8, g: (value >> 8) as u8, b: value as u8 }
    }

    /// Returns the color in CSS syntax: `#2a68ad`.
    #[must_use]
    pub fn css(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.r, self.g, self.b)
    }

    /// Returns a mixture of two colors: `self` at `amount` 0, `other` at `amount` 1.
    #[must_use]
    pub fn mix(self, other: Self, amount: f32) -> Self {
        // In integers: WebAssembly has no instruction that rounds a float like this.
        let amount = (amount.clamp(0.0, 1.0) * 65_536.0) as i32;
        let part =
            |a: u8, b: u8| ((i32::from(a) * 65_536 + (i32::from(b) - i32::from(a)) * amount + 32_768) >> 16) as u8;
        Self { r: part(self.r, other.r), g: part(self.g, other.g), b: part(self.b, other.b) }
    }
}

/// A rectangle of pixels; column `x1` and row `y1` are just outside of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rect {
    /// Leftmost column.
    pub x0: i32,
    /// Topmost row.
    pub y0: i32,
    /// First column to the right of the rectangle.
    pub x1: i32,
    /// First row below the rectangle.
    pub y1: i32,
}

impl Rect {
    /// Creates a rectangle from its edges.
    pub const fn new(x0: i32, y0: i32, x1: i32, y1: i32) -> Self {
        Self { x0, y0, x1, y1 }
    }

    /// Returns the width in pixels.
    pub const fn width(&self) -> i32 {
        self.x1 - self.x0
    }

    /// Returns the height in pixels.
    pub const fn height(&self) -> i32 {
        self.y1 - self.y0
    }

    /// Returns true if pixel (`x`, `y`) is inside the rectangle.
    pub const fn contains(&self, x: i32, y: i32) -> bool {
        x >= self.x0 && x < self.x1 && y >= self.y0 && y < self.y1
    }

    /// Returns the part inside both rectangles; its width or height is 0 if they do not overlap.
    pub fn intersect(&self, other: Self) -> Self {
        let (x0, y0) = (self.x0.max(other.x0), self.y0.max(other.y0));
        Self { x0, y0, x1: self.x1.min(other.x1).max(x0), y1: self.y1.min(other.y1).max(y0) }
    }

    /// Returns the pixels inside the rectangle along its edges (top, bottom, left, right), `stroke`
    /// pixels wide.
    pub fn edges(&self, stroke: i32) -> [Self; 4] {
        let Self { x0, y0, x1, y1 } = *self;
        [
            Self { y1: (y0 + stroke).min(y1), ..*self },
            Self { y0: (y1 - stroke).max(y0), ..*self },
            Self { x1: (x0 + stroke).min(x1), ..*self },
            Self { x0: (x1 - stroke).max(x0), ..*self },
        ]
    }
}

/// Minimum width in pixels of a rectangle that [`Bitmap::fill`] fills by copying its first row.
const COPIED_WIDTH: usize = 16;

/// A picture of opaque RGBA pixels in memory. Drawing outside of its bounds has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    width: i32,
    height: i32,
    pixels: Vec<[u8; 4]>,
}

impl Bitmap {
    /// Longest side of a picture in pixels; a longer side is clamped. Browsers refuse larger
    /// canvases as well.
    pub const MAX_SIDE: u32 = 16_384;

    /// Creates a picture of one color. Sides are clamped to 1 ..= [`MAX_SIDE`](Self::MAX_SIDE).
    pub fn new(width: u32, height: u32, color: Color) -> Self {
        let (width, height) = (width.clamp(1, Self::MAX_SIDE), height.clamp(1, Self::MAX_SIDE));
        let pixels = vec![opaque(color); width as usize * height as usize];
        Self { width: width as i32, height: height as i32, pixels }
    }

    /// Returns the width in pixels.
    pub const fn width(&self) -> i32 {
        self.width
    }

    /// Returns the height in pixels.
    pub const fn height(&self) -> i32 {
        self.height
    }

    /// Returns the whole picture as a rectangle.
    pub const fn bounds(&self) -> Rect {
        Rect::new(0, 0, self.width, self.height)
    }

    /// Returns the pixels as bytes: red, green, blue, alpha; rows from the top.
    pub fn bytes(&self) -> &[u8] {
        self.pixels.as_flattened()
    }

    /// Returns the color of pixel (`x`, `y`), or `None` outside of the picture.
    pub fn pixel(&self, x: i32, y: i32) -> Option<Color> {
        self.bounds().contains(x, y).then(|| {
            let [r, g, b, _] = self.pixels[self.index(x, y)];
            Color { r, g, b }
        })
    }

    /// Makes this picture a copy of `other`, in size and pixels. Allocates only if its own memory
    /// is too small.
    pub fn copy_from(&mut self, other: &Self) {
        self.clone_from(other);
    }

    /// Copies another picture into this one with its upper left corner at pixel (`x`, `y`); parts
    /// outside of this picture are left out.
    pub fn paste(&mut self, other: &Self, x: i32, y: i32) {
        let from = x.min(0).unsigned_abs() as usize;
        self.for_each_row(Rect::new(x, y, x + other.width, y + other.height), |row, pixels| {
            let start = other.index(0, row - y) + from;
            pixels.copy_from_slice(&other.pixels[start..start + pixels.len()]);
        });
    }

    /// Sets the color of pixel (`x`, `y`); does nothing outside of the picture.
    pub fn set(&mut self, x: i32, y: i32, color: Color) {
        if self.bounds().contains(x, y) {
            let index = self.index(x, y);
            self.pixels[index] = opaque(color);
        }
    }

    /// Mixes a color into pixel (`x`, `y`) with opacity `alpha` (0 to 1); does nothing outside of
    /// the picture.
    pub fn blend(&mut self, x: i32, y: i32, color: Color, alpha: f32) {
        if let Some(below) = self.pixel(x, y) {
            self.set(x, y, below.mix(color, alpha));
        }
    }

    /// Fills a rectangle, clipped to the picture, with an opaque color.
    pub fn fill(&mut self, rect: Rect, color: Color) {
        let rect = rect.intersect(self.bounds());
        let (width, start) = (rect.width() as usize, self.index(rect.x0, rect.y0));
        let rows = rect.height() as usize;
        if width < COPIED_WIDTH || rows < 2 {
            return self.for_each_row(rect, |_, row| row.fill(opaque(color)));
        }
        // Copying a wide row is faster than filling it pixel by pixel.
        self.pixels[start..start + width].fill(opaque(color));
        for row in 1..rows {
            self.pixels.copy_within(start..start + width, start + row * self.width as usize);
        }
    }

    /// Fills the pixels of column `x` from row `y0` up to, but not including, row `y1`, clipped to
    /// the picture, with an opaque color.
    pub fn fill_column(&mut self, x: i32, (y0, y1): (i32, i32), color: Color) {
        if !(0..self.width).contains(&x) {
            return;
        }
        let (color, width) = (opaque(color), self.width as usize);
        let rows = y0.max(0)..y1.min(self.height);
        let start = self.index(x, rows.start);
        // By index: in the page, which is compiled for size, an iterator costs a function call per
        // pixel.
        for row in 0..rows.len() {
            self.pixels[start + row * width] = color;
        }
    }

    /// Mixes a color into each pixel of a rectangle, clipped to the picture, with opacity `alpha`
    /// (0 to 1).
    pub fn tint(&mut self, rect: Rect, color: Color, alpha: f32) {
        // Neighboring pixels are mostly equal, so the last mixture is kept.
        let (mut below, mut mixed) = (opaque(color), opaque(color));
        self.for_each_row(rect, |_, row| {
            for pixel in row {
                if *pixel != below {
                    let [r, g, b, _] = *pixel;
                    (below, mixed) = (*pixel, opaque(Color { r, g, b }.mix(color, alpha)));
                }
                *pixel = mixed;
            }
        });
    }

    /// Draws the edge of a rectangle, `stroke` pixels wide, on the pixels inside the rectangle.
    pub fn outline(&mut self, rect: Rect, stroke: i32, color: Color) {
        rect.edges(stroke).into_iter().for_each(|edge| self.fill(edge, color));
    }

    /// Calls `paint` for each pixel row of a rectangle, clipped to the picture, from the top.
    /// `paint` gets the row's number counted from the picture's top, and the row's pixels (RGBA).
    pub fn for_each_row(&mut self, rect: Rect, mut paint: impl FnMut(i32, &mut [[u8; 4]])) {
        let rect = rect.intersect(self.bounds());
        if rect.width() == 0 {
            return;
        }
        for y in rect.y0..rect.y1 {
            let start = self.index(rect.x0, y);
            paint(y, &mut self.pixels[start..start + rect.width() as usize]);
        }
    }

    /// Returns the index in `pixels` of pixel (`x`, `y`), which must be inside the picture.
    fn index(&self, x: i32, y: i32) -> usize {
        y as usize * self.width as usize + x as usize
    }
}

/// Returns the four bytes of a pixel: red, green, blue, and alpha 255.
pub const fn opaque(color: Color) -> [u8; 4] {
    [color.r, color.g, color.b, 255]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_filled_within_the_picture() {
        let (white, red) = (Color { r: 255, g: 255, b: 255 }, Color { r: 255, g: 0, b: 0 });
        for (x, rows) in [(1, (-2, 2)), (2, (1, 9)), (0, (2, 1)), (-1, (0, 3)), (3, (0, 3)), (1, (7, 9))] {
            let [mut column, mut rect] = [(); 2].map(|()| Bitmap::new(3, 3, white));
            column.fill_column(x, rows, red);
            rect.fill(Rect::new(x, rows.0, x + 1, rows.1), red);
            assert_eq!(column.bytes(), rect.bytes(), "column {x}, rows {rows:?}");
        }
    }

    #[test]
    fn drawing_is_clipped_to_the_bitmap() {
        let white = Color::hex(0xffffff);
        let mut bitmap = Bitmap::new(4, 3, Color::default());
        bitmap.fill(Rect::new(-5, -5, 2, 1), white);
        bitmap.outline(Rect::new(3, 2, 90, 90), 1, white);
        bitmap.set(-1, 0, white);
        bitmap.blend(9, 9, white, 0.5);
        let lit = (0..3).flat_map(|y| (0..4).map(move |x| (x, y))).filter(|&(x, y)| bitmap.pixel(x, y) == Some(white));
        assert_eq!(lit.collect::<Vec<_>>(), [(0, 0), (1, 0), (3, 2)]);
        assert_eq!(bitmap.bytes().len(), 4 * 3 * 4);
    }

    #[test]
    fn pasted_picture_is_clipped() {
        let (dark, light) = (Color::hex(0), Color::hex(0xffffff));
        for (x, y, lit) in [(1, 1, 4), (-1, -1, 1), (3, 2, 1), (-9, 0, 0), (0, 9, 0)] {
            let mut bitmap = Bitmap::new(4, 3, dark);
            bitmap.paste(&Bitmap::new(2, 2, light), x, y);
            let count = bitmap.bytes().chunks(4).filter(|pixel| pixel[0] == 255).count();
            assert_eq!(count, lit, "at {x}, {y}");
        }
    }

    #[test]
    fn mix_interpolates_and_clamps() {
        let (black, white) = (Color::hex(0), Color::hex(0xffffff));
        assert_eq!(black.mix(white, 0.5), Color::hex(0x808080));
        assert_eq!(black.mix(white, -1.0), black);
        assert_eq!(black.mix(white, 2.0), white);
    }
}
