//! Golden pictures: PNG files that a drawn picture must equal in every pixel.
//!
//! `UPDATE_GOLDEN=1 cargo test -p vramscope-viewer -p vramscope-report` writes new ones; look at
//! them before you commit them.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use png::{BitDepth, ColorType, Compression, DeflateCompression, Filter};
use vramscope_draw::Bitmap;

/// Returns a path in the crate's folder.
pub(crate) fn crate_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns true if golden pictures are written instead of compared.
pub(crate) fn is_updating() -> bool {
    std::env::var_os("UPDATE_GOLDEN").is_some()
}

/// Compares a picture with the golden picture `tests/golden/{name}.png`.
#[track_caller]
pub(crate) fn check(name: &str, picture: &Bitmap) {
    let compared = compare(&crate_path(&format!("tests/golden/{name}.png")), picture);
    compared.unwrap_or_else(|difference| panic!("{difference}"));
}

/// Compares a picture with a golden picture, or writes that if `UPDATE_GOLDEN` is set.
///
/// # Errors
/// If a pixel differs: names the file, the number of different pixels and the first one, and the
/// file in the temporary folder that has the drawn picture.
pub(crate) fn compare(path: &Path, picture: &Bitmap) -> Result<(), String> {
    if is_updating() {
        write(path, picture);
        return Ok(());
    }
    let drawn_path = std::env::temp_dir().join("vramscope-golden").join(path.file_name().expect("a file"));
    let with_drawn = |difference: String| {
        write(&drawn_path, picture);
        format!("{}: {difference}; drawn: {}", path.display(), drawn_path.display())
    };
    let file = fs::read(path).map_err(|error| with_drawn(format!("{error}: UPDATE_GOLDEN=1 writes it")))?;
    let (width, height, expected) = decode(&file);
    if (width as i32, height as i32) != (picture.width(), picture.height()) {
        let drawn = (picture.width(), picture.height());
        return Err(with_drawn(format!("{width} x {height} pixels, drawn as {} x {}", drawn.0, drawn.1)));
    }
    let differs = |(golden, drawn): (&[u8], &[u8])| golden != drawn;
    let pixels = || expected.chunks_exact(4).zip(picture.bytes().chunks_exact(4));
    let Some(first) = pixels().position(differs) else { return Ok(()) };
    let count = pixels().filter(|&pixels| differs(pixels)).count();
    let largest = expected.iter().zip(picture.bytes()).map(|(golden, drawn)| golden.abs_diff(*drawn)).max();
    let (golden, drawn) = pixels().nth(first).expect("a pixel");
    let (x, y) = (first % width as usize, first / width as usize);
    Err(with_drawn(format!(
        "{count} of {} pixels differ, by up to {} levels, the first at ({x}, {y}): {golden:?} in the file, \
         {drawn:?} drawn",
        width * height,
        largest.unwrap_or(0),
    )))
}

/// Writes a picture as a PNG file, and creates its folder.
fn write(path: &Path, picture: &Bitmap) {
    fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("the folder can be created");
    fs::write(path, encode(picture)).expect("the folder can be written");
}

/// Encodes a picture as the smallest of several PNG files: with a palette if there are few colors,
/// and with each filter.
fn encode(picture: &Bitmap) -> Vec<u8> {
    let size = (picture.width() as u32, picture.height() as u32);
    let pixels = picture.bytes();
    let is_opaque = pixels.chunks_exact(4).all(|pixel| pixel[3] == 255);
    let mut palette: Vec<u8> = Vec::new();
    let mut known: HashMap<&[u8], u8> = HashMap::new();
    let mut indices = Vec::with_capacity(pixels.len() / 4);
    for pixel in pixels.chunks_exact(4).take_while(|_| is_opaque) {
        let next = u8::try_from(known.len());
        let index = match (known.get(pixel), next) {
            (Some(index), _) => *index,
            (None, Ok(next)) => {
                known.insert(pixel, next);
                palette.extend(&pixel[..3]);
                next
            }
            (None, Err(_)) => break,
        };
        indices.push(index);
    }
    let (color, data) = if indices.len() * 4 == pixels.len() {
        (ColorType::Indexed, pack(&indices, size.0, depth(palette.len() / 3)))
    } else if is_opaque {
        (ColorType::Rgb, pixels.chunks_exact(4).flat_map(|pixel| &pixel[..3]).copied().collect())
    } else {
        (ColorType::Rgba, pixels.to_vec())
    };
    let filters = [Filter::NoFilter, Filter::Sub, Filter::Up, Filter::Paeth, Filter::Adaptive];
    let files = filters.map(|filter| {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, size.0, size.1);
        encoder.set_color(color);
        if color == ColorType::Indexed {
            encoder.set_palette(&palette[..]);
            encoder.set_depth(depth(palette.len() / 3));
        }
        encoder.set_compression(Compression::High);
        encoder.set_deflate_compression(DeflateCompression::Level(9));
        encoder.set_filter(filter);
        let mut writer = encoder.write_header().expect("the header is valid");
        writer.write_image_data(&data).expect("a valid picture");
        writer.finish().expect("a whole picture");
        file
    });
    files.into_iter().min_by_key(Vec::len).expect("there are filters")
}

/// Returns the bits of a pixel with a palette of this many colors.
fn depth(colors: usize) -> BitDepth {
    match colors {
        0..=2 => BitDepth::One,
        3..=4 => BitDepth::Two,
        5..=16 => BitDepth::Four,
        _ => BitDepth::Eight,
    }
}

/// Packs the indices of each pixel row in bytes.
fn pack(indices: &[u8], width: u32, depth: BitDepth) -> Vec<u8> {
    let bits = depth as usize;
    let pack_row = |row: &[u8]| {
        let byte = |pixels: &[u8]| {
            pixels.iter().enumerate().fold(0, |byte, (at, index)| byte | (index << (8 - bits * (at + 1))))
        };
        row.chunks(8 / bits).map(byte).collect::<Vec<u8>>()
    };
    indices.chunks(width.max(1) as usize).flat_map(pack_row).collect()
}

/// Decodes a PNG file: width, height, and the pixels as RGBA.
fn decode(file: &[u8]) -> (u32, u32, Vec<u8>) {
    let mut decoder = png::Decoder::new(std::io::Cursor::new(file));
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().expect("a valid picture");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a picture that fits in memory")];
    let info = reader.next_frame(&mut bytes).expect("a whole picture");
    bytes.truncate(info.buffer_size());
    if info.color_type == ColorType::Rgb {
        bytes = bytes.chunks_exact(3).flat_map(|pixel| [pixel[0], pixel[1], pixel[2], 255]).collect();
    }
    (info.width, info.height, bytes)
}

/// Returns a small picture with this many colors.
fn gradient(colors: u16) -> Bitmap {
    let mut picture = Bitmap::new(37, 21, vramscope_draw::Color::default());
    let mut pixel = 0u16;
    picture.for_each_row(picture.bounds(), |_, row| {
        for color in row {
            let [low, high] = (pixel % colors).to_le_bytes();
            (*color, pixel) = ([low, high, 100, 255], pixel + 1);
        }
    });
    picture
}

#[test]
fn encoded_pictures_keep_every_pixel() {
    for colors in [1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 700] {
        let picture = gradient(colors);
        let (width, height, bytes) = decode(&encode(&picture));
        assert_eq!((width, height, &bytes[..]), (37, 21, picture.bytes()), "{colors} colors");
    }
}

#[test]
fn one_level_of_one_pixel_is_a_difference() {
    if is_updating() {
        return;
    }
    let path = std::env::temp_dir().join(format!("vramscope-golden-{}.png", std::process::id()));
    let mut picture = gradient(300);
    write(&path, &picture);
    assert_eq!(compare(&path, &picture), Ok(()));
    picture.for_each_row(picture.bounds(), |y, row| row[5][2] += u8::from(y == 7));
    let difference = compare(&path, &picture).expect_err("a pixel differs");
    fs::remove_file(&path).expect("the file was written");
    assert!(difference.contains("1 of 777 pixels differ, by up to 1 levels, the first at (5, 7)"), "{difference}");
}
