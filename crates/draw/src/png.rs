//! Encodes bitmaps as PNG files.

use crate::bitmap::Bitmap;

/// Returns the bitmap as a PNG file. Equal pixels give equal bytes.
pub fn encode(bitmap: &Bitmap) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, bitmap.width() as u32, bitmap.height() as u32);
    // Pictures are opaque; files without alpha are smaller.
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_compression(png::Compression::High);
    let pixels: Vec<u8> = bitmap.bytes().chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(&pixels)?;
        writer.finish()
    });
    written.expect("writing to a vector cannot fail, and the bitmap has width × height pixels");
    bytes
}
