//! Small pictures of the page, and how far two of them differ.

use std::collections::HashMap;
use std::fs;
use std::io::Cursor;
use std::path::Path;

/// Colors of a saved picture.
const COLORS: usize = 64;
/// Difference between the means of a color channel that another version of the browser, or another
/// rendering of its fonts, may cause.
const MAX_DIFFERENCE: f32 = 16.0;

/// The color of a pixel: red, green, blue.
type Color = [u8; 3];

/// An opaque picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<Color>,
}

impl Picture {
    /// Decodes a PNG file.
    ///
    /// # Panics
    /// Panics if it is not valid, or has another color type than RGB, RGBA or a palette.
    #[must_use]
    pub fn from_png(bytes: &[u8]) -> Self {
        let mut decoder = png::Decoder::new(Cursor::new(bytes));
        decoder.set_transformations(png::Transformations::EXPAND);
        let mut reader = decoder.read_info().expect("a valid picture");
        let mut buffer = vec![0; reader.output_buffer_size().expect("a picture that fits in memory")];
        let info = reader.next_frame(&mut buffer).expect("a whole picture");
        let channels = info.color_type.samples();
        assert!(channels >= 3, "{:?} is not a color picture", info.color_type);
        let pixels = buffer[..info.buffer_size()].chunks_exact(channels);
        let pixels = pixels.map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
        Self { width: info.width as usize, height: info.height as usize, pixels }
    }

    /// Reads a PNG file; `None` if it does not exist.
    ///
    /// # Panics
    /// Panics if the file is not a valid picture.
    #[must_use]
    pub fn load(path: &Path) -> Option<Self> {
        fs::read(path).ok().map(|bytes| Self::from_png(&bytes))
    }

    /// Writes a PNG file with a palette of 64 colors, and creates its folder.
    ///
    /// # Panics
    /// Panics if it cannot be written.
    pub fn save(&self, path: &Path) {
        let folder = path.parent().expect("a file is in a folder");
        fs::create_dir_all(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        fs::write(path, self.to_png()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Encodes it as PNG with a palette of 64 colors.
    fn to_png(&self) -> Vec<u8> {
        let (palette, indices) = self.palette();
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_palette(palette.concat());
        encoder.set_compression(png::Compression::High);
        encoder.set_filter(png::Filter::NoFilter);
        let mut writer = encoder.write_header().expect("the header is valid");
        writer.write_image_data(&indices).expect("a valid picture");
        writer.finish().expect("a whole picture");
        bytes
    }

    /// Returns a palette, and for each pixel the index of its nearest color in it. The palette is
    /// found by dividing the colors where they vary most, until there are [`COLORS`] parts.
    fn palette(&self) -> (Vec<Color>, Vec<u8>) {
        let mut counts: HashMap<Color, u32> = HashMap::new();
        self.pixels.iter().for_each(|color| *counts.entry(*color).or_default() += 1);
        let mut colors: Vec<(Color, u32)> = counts.into_iter().collect();
        colors.sort_unstable();
        let mut parts = vec![ColorPart::new(colors)];
        while parts.len() < COLORS {
            let variance = |index: &usize| parts[*index].variance;
            let Some(widest) = (0..parts.len()).max_by(|one, other| variance(one).total_cmp(&variance(other))) else {
                break;
            };
            if parts[widest].variance <= 0.0 {
                break;
            }
            let (low, high) = parts.swap_remove(widest).split();
            parts.extend([low, high]);
        }
        let palette: Vec<Color> = parts.iter().map(|part| part.mean.map(|mean| mean.round() as u8)).collect();
        let distance = |one: Color, other: Color| -> u32 {
            one.iter().zip(other).map(|(one, other)| u32::from(one.abs_diff(other)).pow(2)).sum()
        };
        let mut known: HashMap<Color, u8> = HashMap::new();
        let nearest =
            |color: Color| (0..palette.len()).min_by_key(|index| distance(palette[*index], color)).unwrap_or(0) as u8;
        let indices = self.pixels.iter().map(|color| *known.entry(*color).or_insert_with(|| nearest(*color))).collect();
        (palette, indices)
    }

    /// Returns the picture in a smaller size: each pixel is the mean of `factor` by `factor`.
    #[must_use]
    pub fn shrunk(&self, factor: usize) -> Self {
        let (width, height) = (self.width / factor, self.height / factor);
        let mean = |at: usize| {
            let (x, y) = (at % width * factor, at / width * factor);
            self.mean(x..x + factor, y..y + factor).map(|channel| channel.round() as u8)
        };
        Self { width, height, pixels: (0..width * height).map(mean).collect() }
    }

    /// Returns the mean color of a part of the picture.
    fn mean(&self, columns: std::ops::Range<usize>, rows: std::ops::Range<usize>) -> [f32; 3] {
        let count = (columns.len() * rows.len()) as f32;
        let mut sums = [0u32; 3];
        for y in rows {
            for color in &self.pixels[y * self.width + columns.start..y * self.width + columns.end] {
                sums.iter_mut().zip(color).for_each(|(sum, channel)| *sum += u32::from(*channel));
            }
        }
        sums.map(|sum| sum as f32 / count)
    }

    /// Returns the mean colors of blocks of `block` by `block` pixels, and the blocks a row.
    fn means(&self, block: usize) -> (Vec<[f32; 3]>, usize) {
        let (across, down) = (self.width.div_ceil(block), self.height.div_ceil(block));
        let mean = |at: usize| {
            let (x, y) = (at % across * block, at / across * block);
            self.mean(x..self.width.min(x + block), y..self.height.min(y + block))
        };
        ((0..across * down).map(mean).collect(), across)
    }

    /// Compares it with another picture, by the mean colors of blocks of `block` by `block` pixels.
    ///
    /// A block differs if its color is not among those of the same block and its eight neighbors in
    /// the other picture, so text may be a few pixels away. Pictures of another size differ in
    /// every block.
    #[must_use]
    pub fn compare(&self, other: &Self, block: usize) -> Difference {
        let (mine, across) = self.means(block);
        let differs = if (self.width, self.height) == (other.width, other.height) {
            let (theirs, _) = other.means(block);
            let is_alone = |at: usize, means: &[[f32; 3]], others: &[[f32; 3]]| {
                (0..3).any(|channel| {
                    let (low, high) = range_around(others, across, at, channel);
                    let mean = means[at][channel];
                    mean < low - MAX_DIFFERENCE || mean > high + MAX_DIFFERENCE
                })
            };
            (0..mine.len()).map(|at| is_alone(at, &mine, &theirs) || is_alone(at, &theirs, &mine)).collect()
        } else {
            vec![true; mine.len()]
        };
        Difference { differs, across, block }
    }

    /// Returns the picture with the blocks of a difference in red and the rest pale.
    #[must_use]
    pub fn marked(&self, difference: &Difference) -> Self {
        let mut marked = self.clone();
        for (at, pixel) in marked.pixels.iter_mut().enumerate() {
            let (x, y) = (at % self.width / difference.block, at / self.width / difference.block);
            let differs = difference.differs.get(y * difference.across + x).is_some_and(|differs| *differs);
            *pixel = if differs { [220, pixel[1] / 2, pixel[2] / 2] } else { pixel.map(|channel| 170 + channel / 4) };
        }
        marked
    }
}

/// Returns the lowest and the highest value of a channel in a block and its neighbors.
fn range_around(means: &[[f32; 3]], across: usize, at: usize, channel: usize) -> (f32, f32) {
    let (x, y) = (at % across, at / across);
    let rows = y.saturating_sub(1)..=(y + 1).min(means.len() / across - 1);
    let (mut low, mut high) = (f32::MAX, f32::MIN);
    for row in rows {
        for column in x.saturating_sub(1)..=(x + 1).min(across - 1) {
            let value = means[row * across + column][channel];
            (low, high) = (low.min(value), high.max(value));
        }
    }
    (low, high)
}

/// Which blocks of two pictures differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    differs: Vec<bool>,
    across: usize,
    block: usize,
}

impl Difference {
    /// Returns the share of the blocks that differ, 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.differs.iter().filter(|differs| **differs).count() as f64 / self.differs.len().max(1) as f64
    }
}

/// Some of the colors of a picture, each with its number of pixels.
struct ColorPart {
    colors: Vec<(Color, u32)>,
    mean: [f64; 3],
    /// The channel that varies most.
    channel: usize,
    /// The sum of its squared differences from the mean.
    variance: f64,
}

impl ColorPart {
    fn new(colors: Vec<(Color, u32)>) -> Self {
        let pixels: f64 = colors.iter().map(|(_, count)| f64::from(*count)).sum();
        let mut mean = [0.0; 3];
        let mut variances = [0.0; 3];
        for channel in 0..3 {
            let values = || colors.iter().map(|(color, count)| (f64::from(color[channel]), f64::from(*count)));
            mean[channel] = values().map(|(value, count)| value * count).sum::<f64>() / pixels.max(1.0);
            variances[channel] = values().map(|(value, count)| (value - mean[channel]).powi(2) * count).sum();
        }
        let channel = (0..3).max_by(|one, other| variances[*one].total_cmp(&variances[*other])).unwrap_or(0);
        // Rounding leaves a little variance in a part of one color.
        let variance = if colors.len() > 1 { variances[channel] } else { 0.0 };
        Self { colors, mean, channel, variance }
    }

    /// Divides it at the mean of the channel that varies most.
    fn split(self) -> (Self, Self) {
        let is_low = |(color, _): &(Color, u32)| f64::from(color[self.channel]) < self.mean[self.channel];
        let (low, high) = self.colors.into_iter().partition(is_low);
        (Self::new(low), Self::new(high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a picture with a row of dashes, as text has, at a position.
    fn dashes(x: usize, y: usize) -> Picture {
        let mut pixels = vec![[250, 250, 250]; 160 * 80];
        for dash in 0..10 {
            for column in 0..4 {
                (0..6).for_each(|row| pixels[(y + row) * 160 + x + dash * 8 + column] = [20, 30, 60]);
            }
        }
        Picture { width: 160, height: 80, pixels }
    }

    #[test]
    fn picture_survives_saving_and_loading() {
        let picture = dashes(20, 20);
        assert_eq!(Picture::from_png(&picture.to_png()), picture, "two colors are exact");
    }

    #[test]
    fn palette_keeps_the_mean_of_many_colors() {
        let pixels = (0..64 * 64).map(|at| [(at % 64) as u8 * 4, (at / 64) as u8 * 2, 90]).collect();
        let picture = Picture { width: 64, height: 64, pixels };
        let saved = Picture::from_png(&picture.to_png());
        assert!(picture.compare(&saved, 8).share() < 0.01);
        let (mine, theirs) = (picture.mean(0..64, 0..64), saved.mean(0..64, 0..64));
        assert!(mine.iter().zip(theirs).all(|(mine, theirs)| (mine - theirs).abs() < 2.0), "{mine:?} {theirs:?}");
    }

    #[test]
    fn text_may_move_a_little_but_not_vanish_or_change_its_color() {
        let picture = dashes(20, 20);
        assert_eq!(picture.compare(&dashes(22, 21), 8).share(), 0.0, "moved by two pixels");
        assert!(picture.compare(&dashes(20, 44), 8).share() > 0.03, "three lines lower");
        let mut empty = picture.clone();
        empty.pixels.fill([250, 250, 250]);
        assert!(picture.compare(&empty, 8).share() > 0.03, "without the text");
        assert!(empty.compare(&picture, 8).share() > 0.03, "with text where none was");
        let mut pale = picture.clone();
        pale.pixels.iter_mut().for_each(|pixel| *pixel = pixel.map(|channel| channel / 2 + 120));
        assert!(picture.compare(&pale, 8).share() > 0.03, "in another color");
    }

    #[test]
    fn pictures_of_another_size_differ() {
        let picture = dashes(20, 20);
        let difference = picture.compare(&picture.shrunk(2), 8);
        assert_eq!(difference.share(), 1.0);
        assert_eq!((picture.shrunk(2).width, picture.shrunk(2).height), (80, 40));
        assert!(picture.marked(&difference).pixels.iter().all(|pixel| pixel[0] == 220));
    }
}
