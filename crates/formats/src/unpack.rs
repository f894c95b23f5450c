//! Unpacks files that contain another file: gzip, zstd and HTML exports.

use std::borrow::Cow;
use std::error::Error;
use std::io::{self, Read};

use flate2::bufread::GzDecoder;

use vramscope_trace::ByteSize;

use crate::error::ReadError;
use crate::html::{is_html, recording_in_html};
use crate::limits::Limits;

/// The first bytes of every gzip member.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
/// The first bytes of every zstd frame, little-endian `0xFD2FB528`.
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Number of bytes that are decompressed at a time, so that the limit is checked early and a false
/// length in a header costs nothing.
const STEP_BYTES: usize = 1 << 20;

/// Returns true if a file that begins with `head` may have to be [unpacked](unpack()) before it is
/// read; false if it can be read as it is.
///
/// HTML documents are included, because they may be exports of vramscope.
#[must_use]
pub fn is_packed(head: &[u8]) -> bool {
    head.starts_with(GZIP_MAGIC) || head.starts_with(ZSTD_MAGIC) || is_skippable_frame(head) || is_html(head)
}

/// Returns true if `bytes` begin a zstd frame that decoders skip; pzstd writes one at the start of
/// its files.
fn is_skippable_frame(bytes: &[u8]) -> bool {
    matches!(bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// Unpacks a gzip or zstd file or an HTML export; returns any other input unchanged.
///
/// An HTML export may itself be compressed. An HTML document without a recording is returned
/// unchanged.
///
/// ```
/// use std::borrow::Cow;
/// use vramscope_formats::{Limits, unpack};
///
/// let plain = unpack(b"{}", &Limits::default()).unwrap();
/// assert!(matches!(plain, Cow::Borrowed(b"{}")));
///
/// let cut_off = unpack(b"\x1f\x8b\x08\0\0", &Limits::default()).unwrap_err();
/// assert_eq!(cut_off.to_string(), "the file is cut off at byte 5: save or copy it again");
/// ```
///
/// # Errors
/// If the packed data is damaged or cut off, or unpacks to more than
/// [`Limits::max_unpacked_bytes`].
pub fn unpack<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Cow<'a, [u8]>, ReadError> {
    let unpacked = if bytes.starts_with(GZIP_MAGIC) {
        Cow::Owned(unpack_gzip(bytes, limits)?)
    } else if skip_frames(bytes).starts_with(ZSTD_MAGIC) {
        Cow::Owned(unpack_zstd(bytes, limits)?)
    } else {
        Cow::Borrowed(bytes)
    };
    Ok(match recording_in_html(&unpacked, limits)? {
        Some(recording) => Cow::Owned(recording),
        None => unpacked,
    })
}

/// Unpacks all gzip members of the input. Zeros after the last member are padding and ignored.
fn unpack_gzip(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, ReadError> {
    let mut unpacked = Vec::new();
    let mut rest = bytes;
    while rest.iter().any(|&byte| byte != 0) {
        let result = decompress(&mut unpacked, &mut GzDecoder::new(&mut rest), limits);
        result.map_err(|error| error.into_read_error("gzip", bytes, rest))?;
    }
    Ok(unpacked)
}

/// Returns the rest of `bytes` after the skippable zstd frames at their start.
fn skip_frames(mut bytes: &[u8]) -> &[u8] {
    while is_skippable_frame(bytes)
        && let Some((len, rest)) = bytes[4..].split_first_chunk()
        && let Some(rest) = rest.get(u32::from_le_bytes(*len) as usize..)
    {
        bytes = rest;
    }
    bytes
}

/// Unpacks all zstd frames of the input with the C library, which takes a third of the time of
/// ruzstd.
#[cfg(not(target_arch = "wasm32"))]
fn unpack_zstd(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, ReadError> {
    let mut unpacked = Vec::new();
    let mut rest = bytes;
    let result = zstd::stream::read::Decoder::with_buffer(&mut rest)
        .map_err(UnpackError::Data)
        .and_then(|mut frames| decompress(&mut unpacked, &mut frames, limits));
    result.map_err(|error| error.into_read_error("zstd", bytes, rest))?;
    Ok(unpacked)
}

/// Unpacks all zstd frames of the input with ruzstd, which WebAssembly builds use in place of
/// the C library.
#[cfg(target_arch = "wasm32")]
fn unpack_zstd(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, ReadError> {
    let mut unpacked = Vec::new();
    let mut rest = skip_frames(bytes);
    while !rest.is_empty() {
        let result = ruzstd::decoding::StreamingDecoder::new(&mut rest)
            .map_err(|error| UnpackError::Data(io::Error::other(error)))
            .and_then(|mut frame| decompress(&mut unpacked, &mut frame, limits));
        result.map_err(|error| error.into_read_error("zstd", bytes, rest))?;
        rest = skip_frames(rest);
    }
    Ok(unpacked)
}

/// Why decompression failed.
enum UnpackError {
    /// The decoder refused the data.
    Data(io::Error),
    /// The unpacked data exceeds this limit, in bytes.
    TooLarge(u64),
    /// The unpacked data does not fit in memory.
    OutOfMemory,
}

impl UnpackError {
    /// Converts this to a read error. `bytes` is the packed file and `rest` the end of it that the
    /// decoder has not consumed, which gives the position; `format` is the name for the message,
    /// such as `gzip`.
    fn into_read_error(self, format: &str, bytes: &[u8], rest: &[u8]) -> ReadError {
        let offset = bytes.len() - rest.len();
        match self {
            Self::Data(error) if is_end_of_input(&error) => ReadError::truncated(bytes.len()).with_source(error),
            Self::Data(error) => {
                ReadError::at(offset, format!("the {format} data is damaged: save or copy the file again"))
                    .with_source(error)
            }
            Self::TooLarge(limit) => {
                let limit = ByteSize(limit);
                ReadError::at(offset, format!("the {format} data unpacks to more than the limit of {limit}"))
            }
            Self::OutOfMemory => {
                ReadError::at(offset, format!("the {format} data unpacks to more than the free memory of this machine"))
            }
        }
    }
}

/// Returns true if a decoder failed because its input ended too early; false if it failed for
/// another reason. ruzstd reports this as the innermost of several nested errors.
fn is_end_of_input(error: &io::Error) -> bool {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return true;
    }
    let mut inner = error.get_ref().map(|inner| inner as &(dyn Error + 'static));
    while let Some(error) = inner {
        let io_error = error.downcast_ref::<io::Error>();
        if io_error.is_some_and(|error| error.kind() == io::ErrorKind::UnexpectedEof) {
            return true;
        }
        inner = error.source();
    }
    false
}

/// Appends everything that `reader` decompresses to `unpacked`; fails if that exceeds the limit on
/// unpacked bytes.
fn decompress(unpacked: &mut Vec<u8>, reader: &mut impl Read, limits: &Limits) -> Result<(), UnpackError> {
    loop {
        let before = unpacked.len();
        unpacked.try_reserve(STEP_BYTES).map_err(|_| UnpackError::OutOfMemory)?;
        let read = reader.by_ref().take(STEP_BYTES as u64).read_to_end(unpacked).map_err(UnpackError::Data)?;
        if unpacked.len() as u64 > limits.max_unpacked_bytes {
            return Err(UnpackError::TooLarge(limits.max_unpacked_bytes));
        }
        if read == 0 {
            debug_assert_eq!(before, unpacked.len());
            return Ok(());
        }
    }
}
