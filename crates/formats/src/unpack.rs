//! Unpacks files that contain another file: gzip, zstd, ZIP archives and HTML pages.

use std::borrow::Cow;

use crate::contained::{contained_file, is_archive};
use crate::decompress::{GzipDecoder, STEP_BYTES, UnpackError, Unpacked, ZstdDecoder, is_skippable_frame, skip_frames};
use crate::error::ReadError;
use crate::html::is_html;
use crate::limits::Limits;

/// The first bytes of every gzip member.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
/// The first bytes of every zstd frame, little-endian `0xFD2FB528`.
const ZSTD_MAGIC: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];

/// Maximum number of archives or pages that are one inside of the other.
pub(crate) const MAX_NESTED: u32 = 2;

/// Returns true if a file that begins with `head` may have to be [unpacked](unpack()) before it is
/// read; false if it can be read as it is.
///
/// HTML documents are included, because they may be exports of vramscope, or pages of PyTorch's
/// `_memory_viz`.
#[must_use]
pub fn is_packed(head: &[u8]) -> bool {
    let is_magic = |magic: &[u8]| head.starts_with(magic);
    is_magic(GZIP_MAGIC) || is_magic(ZSTD_MAGIC) || is_archive(head) || is_skippable_frame(head) || is_html(head)
}

/// Unpacks a gzip or zstd file, the one recording in a ZIP archive, an HTML export, or the snapshot
/// in a page of PyTorch's `_memory_viz`; returns any other input unchanged.
///
/// Archives and pages may themselves be compressed, and contain compressed files. An HTML document
/// without a recording is returned unchanged.
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
    unpack_nested(bytes, limits, MAX_NESTED)
}

/// Unpacks a file that may contain `nested` archives or pages one inside of the other.
fn unpack_nested<'a>(bytes: &'a [u8], limits: &Limits, nested: u32) -> Result<Cow<'a, [u8]>, ReadError> {
    let unpacked = match Packing::of(bytes, true) {
        Some(Packing::None) | None => Cow::Borrowed(bytes),
        Some(_) => {
            let (mut unpacker, mut rest, mut unpacked) = (Unpacker::new(limits), bytes, Vec::new());
            while unpacker.unpack(&mut rest, &mut unpacked)? == Unpacked::Partly {}
            unpacker.finish(&mut unpacked)?;
            Cow::Owned(unpacked)
        }
    };
    match contained_file(&unpacked, limits)? {
        Some(_) if nested == 0 => Err(nested_too_deep()),
        Some(inner) => Ok(Cow::Owned(unpack_nested(&inner, limits, nested - 1)?.into_owned())),
        None => Ok(unpacked),
    }
}

/// Returns the error for archives inside of archives.
pub(crate) fn nested_too_deep() -> ReadError {
    ReadError::at(0, "this file contains archives inside of archives: unpack it first")
}

/// The compression of a file: none, gzip or zstd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    /// None, or a kind that this crate does not know.
    None,
    Gzip,
    Zstd,
}

impl Packing {
    /// Returns the compression of a file that begins with `head`; `None` if more bytes are needed
    /// to recognize it. With `is_complete`, `head` is the whole file and the result is never
    /// `None`.
    fn of(head: &[u8], is_complete: bool) -> Option<Self> {
        let rest = skip_frames(head);
        let is_start_of = |magic: &[u8], bytes: &[u8]| bytes.len() < magic.len() && magic.starts_with(bytes);
        if head.starts_with(GZIP_MAGIC) {
            Some(Self::Gzip)
        } else if rest.starts_with(ZSTD_MAGIC) {
            Some(Self::Zstd)
        } else if is_complete {
            Some(Self::None)
        } else {
            let is_skippable_start =
                matches!(rest, [] | [0x50..=0x5f] | [0x50..=0x5f, 0x2a] | [0x50..=0x5f, 0x2a, 0x4d]);
            let needs_more = is_start_of(GZIP_MAGIC, head)
                || is_start_of(ZSTD_MAGIC, rest)
                || is_skippable_start
                || is_skippable_frame(rest);
            if needs_more { None } else { Some(Self::None) }
        }
    }
}

/// Unpacks a gzip or zstd file whose bytes arrive in pieces. Passes any other file on unchanged.
pub(crate) struct Unpacker {
    decoder: Option<Decoder>,
    /// The first bytes, until the decoder has received them.
    head: Vec<u8>,
    /// Bytes of the file that the decoder has received.
    read: usize,
    /// Bytes unpacked so far.
    unpacked: u64,
    max_unpacked_bytes: u64,
}

/// The decoder for the compression of a file.
enum Decoder {
    /// Passes on the bytes of a file that is not packed.
    Plain,
    Gzip(Box<GzipDecoder>),
    Zstd(ZstdDecoder),
}

impl Decoder {
    /// Returns the name of the compression for error messages.
    fn name(&self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Gzip(_) => "gzip",
            Self::Zstd(_) => "zstd",
        }
    }

    /// Unpacks a part of `input`, appends the result to `out`, and removes the bytes that were read
    /// from `input`.
    fn decode(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Result<Unpacked, UnpackError> {
        match self {
            Self::Plain => {
                let (part, rest) = input.split_at(input.len().min(STEP_BYTES));
                out.try_reserve(part.len()).map_err(|_| UnpackError::OutOfMemory)?;
                out.extend_from_slice(part);
                *input = rest;
                Ok(if rest.is_empty() { Unpacked::All } else { Unpacked::Partly })
            }
            Self::Gzip(decoder) => decoder.decode(input, out),
            Self::Zstd(decoder) => decoder.decode(input, out),
        }
    }

    /// Appends the end of the unpacked data to `out` after all of the input was decoded.
    fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), UnpackError> {
        match self {
            Self::Plain => Ok(()),
            Self::Gzip(decoder) => decoder.finish(out),
            Self::Zstd(decoder) => decoder.finish(out),
        }
    }
}

impl Unpacker {
    /// Starts at the first byte of a file.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { decoder: None, head: Vec::new(), read: 0, unpacked: 0, max_unpacked_bytes: limits.max_unpacked_bytes }
    }

    /// Unpacks a part of `bytes`, the next bytes of the file, and appends the result, about
    /// [`STEP_BYTES`] long, to `out`. Removes the bytes that were read from the start of `bytes`.
    ///
    /// # Errors
    /// If the packed data is damaged, or unpacks to more than the limit.
    pub(crate) fn unpack(&mut self, bytes: &mut &[u8], out: &mut Vec<u8>) -> Result<Unpacked, ReadError> {
        if self.decoder.is_none() {
            self.head.extend_from_slice(std::mem::take(bytes));
            match Packing::of(&self.head, false) {
                Some(packing) => self.start(packing)?,
                None => return Ok(Unpacked::All),
            }
        }
        if self.head.is_empty() {
            return self.decode(bytes, out);
        }
        let head = std::mem::take(&mut self.head);
        let mut rest = &head[..];
        let result = self.decode(&mut rest, out)?;
        let is_read = rest.is_empty() && result == Unpacked::All;
        self.head = rest.to_vec();
        Ok(if is_read && bytes.is_empty() { Unpacked::All } else { Unpacked::Partly })
    }

    /// Creates the decoder for the recognized compression of the file.
    fn start(&mut self, packing: Packing) -> Result<(), ReadError> {
        self.decoder = Some(match packing {
            Packing::None => Decoder::Plain,
            Packing::Gzip => Decoder::Gzip(Box::default()),
            Packing::Zstd => {
                let decoder = ZstdDecoder::new();
                Decoder::Zstd(decoder.map_err(|error| UnpackError::Data(error).into_read_error("zstd", 0, 0))?)
            }
        });
        Ok(())
    }

    /// Passes bytes to the decoder, counts the read and the unpacked bytes, and checks the limit.
    fn decode(&mut self, bytes: &mut &[u8], out: &mut Vec<u8>) -> Result<Unpacked, ReadError> {
        let Some(decoder) = &mut self.decoder else { return Ok(Unpacked::All) };
        let (before, unpacked_before) = (bytes.len(), out.len());
        let result = decoder.decode(bytes, out);
        self.read += before - bytes.len();
        self.unpacked += (out.len() - unpacked_before) as u64;
        let result = result.and_then(|result| self.check_limit().map(|()| result));
        result.map_err(|error| self.error(error))
    }

    /// Fails if more bytes were unpacked than the limit allows.
    fn check_limit(&self) -> Result<(), UnpackError> {
        let is_packed = !matches!(self.decoder, Some(Decoder::Plain));
        if is_packed && self.unpacked > self.max_unpacked_bytes {
            return Err(UnpackError::TooLarge(self.max_unpacked_bytes));
        }
        Ok(())
    }

    /// Converts a decoder's error to a read error with the format and the position in the file.
    fn error(&self, error: UnpackError) -> ReadError {
        let name = self.decoder.as_ref().map_or("packed", Decoder::name);
        error.into_read_error(name, self.read, self.read)
    }

    /// Appends the end of the unpacked data to `out`, after the last byte of the file.
    ///
    /// # Errors
    /// If the packed data is damaged or cut off, or unpacks to more than the limit.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), ReadError> {
        if self.decoder.is_none() {
            let packing = Packing::of(&self.head, true).unwrap_or(Packing::None);
            self.start(packing)?;
        }
        let head = std::mem::take(&mut self.head);
        let mut rest = &head[..];
        while self.decode(&mut rest, out)? == Unpacked::Partly {}
        let before = out.len();
        let result = self.decoder.as_mut().map_or(Ok(()), |decoder| decoder.finish(out));
        self.unpacked += (out.len() - before) as u64;
        result.and_then(|()| self.check_limit()).map_err(|error| self.error(error))
    }
}
