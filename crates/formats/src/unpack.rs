//! Packed inputs: gzip and zstd, known by their magic numbers.

use std::borrow::Cow;
use std::io::Read;

use flate2::bufread::GzDecoder;

use crate::error::ReadError;
use crate::limits::Limits;

const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Output is asked for in pieces of this many bytes, so that the limit is checked in time and a lying header costs nothing.
const STEP_BYTES: usize = 1 << 20;

/// Whether a file that begins like this is packed.
#[must_use]
pub fn is_packed(head: &[u8]) -> bool {
    head.starts_with(GZIP_MAGIC) || head.starts_with(ZSTD_MAGIC) || is_skippable(head)
}

/// Whether this is a frame of zstd with something for another program in it; pzstd begins its files with one.
fn is_skippable(bytes: &[u8]) -> bool {
    matches!(bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// The bytes themselves, or what they unpack to where they are gzip or zstd.
///
/// # Errors
/// Where the packed bytes are damaged, or hold more than [`Limits::max_unpacked_bytes`].
pub fn unpack<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Cow<'a, [u8]>, ReadError> {
    if bytes.starts_with(GZIP_MAGIC) {
        unpack_gzip(bytes, limits).map(Cow::Owned)
    } else if behind_skippable(bytes).starts_with(ZSTD_MAGIC) {
        unpack_zstd(bytes, limits).map(Cow::Owned)
    } else {
        Ok(Cow::Borrowed(bytes))
    }
}

/// Every gzip member of the input, one behind the other. Zeros behind the last fill a disk's block up and say nothing.
fn unpack_gzip(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, ReadError> {
    let mut unpacked = Vec::new();
    let mut rest = bytes;
    while rest.iter().any(|&byte| byte != 0) {
        let read = read_into(&mut unpacked, &mut GzDecoder::new(&mut rest), limits, "gzip");
        read.map_err(|what| ReadError::at(bytes.len() - rest.len(), what))?;
    }
    Ok(unpacked)
}

/// What stands behind the frames that say nothing, with which zstd data may begin.
fn behind_skippable(mut bytes: &[u8]) -> &[u8] {
    while is_skippable(bytes)
        && let Some((len, rest)) = bytes[4..].split_first_chunk()
        && let Some(rest) = rest.get(u32::from_le_bytes(*len) as usize..)
    {
        bytes = rest;
    }
    bytes
}

/// Every zstd frame of the input, one behind the other. By the library in C, which takes a third of the time.
#[cfg(not(target_arch = "wasm32"))]
fn unpack_zstd(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, ReadError> {
    let mut unpacked = Vec::new();
    let mut rest = bytes;
    let read = zstd::stream::read::Decoder::with_buffer(&mut rest)
        .map_err(|error| format!("zstd data cannot be read: {error}"))
        .and_then(|mut frames| read_into(&mut unpacked, &mut frames, limits, "zstd"));
    read.map_err(|what| ReadError::at(bytes.len() - rest.len(), what))?;
    Ok(unpacked)
}

/// Every zstd frame of the input, one behind the other.
#[cfg(target_arch = "wasm32")]
fn unpack_zstd(bytes: &[u8], limits: &Limits) -> Result<Vec<u8>, ReadError> {
    let mut unpacked = Vec::new();
    let mut rest = behind_skippable(bytes);
    while !rest.is_empty() {
        let start = bytes.len() - rest.len();
        let mut frame = ruzstd::decoding::StreamingDecoder::new(&mut rest)
            .map_err(|error| ReadError::at(start, format!("damaged zstd data: {error}")))?;
        let read = read_into(&mut unpacked, &mut frame, limits, "zstd");
        drop(frame);
        read.map_err(|what| ReadError::at(bytes.len() - rest.len(), what))?;
        rest = behind_skippable(rest);
    }
    Ok(unpacked)
}

fn read_into(unpacked: &mut Vec<u8>, reader: &mut impl Read, limits: &Limits, name: &str) -> Result<(), String> {
    loop {
        let before = unpacked.len();
        if unpacked.try_reserve(STEP_BYTES).is_err() {
            return Err(format!("the {name} data unpacks to more than fits in memory"));
        }
        let read = reader
            .by_ref()
            .take(STEP_BYTES as u64)
            .read_to_end(unpacked)
            .map_err(|error| format!("damaged {name} data: {error}"))?;
        if unpacked.len() as u64 > limits.max_unpacked_bytes {
            return Err(format!("the {name} data unpacks to more than {} bytes", limits.max_unpacked_bytes));
        }
        if read == 0 {
            debug_assert_eq!(before, unpacked.len());
            return Ok(());
        }
    }
}
