//! Decoders of gzip and zstd files whose bytes arrive in pieces.

use std::error::Error;
use std::io::{self, Write};

use flate2::write::GzDecoder;

use vramscope_trace::ByteSize;

use crate::error::ReadError;

/// Number of bytes that are decompressed at a time. So the size limit is checked early, a false
/// length in a header has no effect, and a reader of the unpacked bytes needs little memory.
pub(crate) const STEP_BYTES: usize = 1 << 20;

/// The result of decoding: whether all input was unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpacked {
    /// All input was unpacked; the decoder needs more.
    All,
    /// A part of the input was unpacked; call the decoder again with the rest.
    Partly,
}

/// Returns true if `bytes` begin a zstd frame that decoders skip; pzstd writes one at the start of
/// its files.
pub(crate) fn is_skippable_frame(bytes: &[u8]) -> bool {
    matches!(bytes, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// Returns `bytes` without the skippable zstd frames at their start.
pub(crate) fn skip_frames(mut bytes: &[u8]) -> &[u8] {
    while is_skippable_frame(bytes)
        && let Some((len, rest)) = bytes[4..].split_first_chunk()
        && let Some(rest) = rest.get(u32::from_le_bytes(*len) as usize..)
    {
        bytes = rest;
    }
    bytes
}

/// Decodes the members of a gzip file. Zeros after the last member are padding and ignored.
#[derive(Default)]
pub(crate) struct GzipDecoder {
    /// The decoder of the current member; `None` between members.
    member: Option<GzDecoder<Vec<u8>>>,
    /// True once zeros follow a member.
    is_padding: bool,
}

impl GzipDecoder {
    /// Decodes a part of `input`, appends the result to `out`, and removes the bytes that were read
    /// from `input`.
    pub(crate) fn decode(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Result<Unpacked, UnpackError> {
        let start = out.len();
        while let Some(&next) = input.first() {
            if out.len() - start >= STEP_BYTES {
                return Ok(Unpacked::Partly);
            }
            let Some(member) = &mut self.member else {
                if next == 0 {
                    self.is_padding = true;
                    *input = &input[1..];
                } else if self.is_padding {
                    return Err(UnpackError::Data(io::ErrorKind::InvalidData.into()));
                } else {
                    self.member = Some(GzDecoder::new(Vec::new()));
                }
                continue;
            };
            let read = member.write(input).map_err(UnpackError::Data)?;
            *input = &input[read..];
            out.try_reserve(member.get_ref().len()).map_err(|_| UnpackError::OutOfMemory)?;
            out.append(member.get_mut());
            if read == 0 {
                // The member has ended before these bytes.
                self.finish_member(out)?;
            }
        }
        Ok(Unpacked::All)
    }

    /// Checks the checksum of the member that has ended and appends the rest of its data to `out`.
    fn finish_member(&mut self, out: &mut Vec<u8>) -> Result<(), UnpackError> {
        if let Some(member) = self.member.take() {
            out.append(&mut member.finish().map_err(UnpackError::Data)?);
        }
        Ok(())
    }

    /// Appends the end of the data to `out` after all of the input was decoded; fails if the input
    /// is cut off.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), UnpackError> {
        let Some(member) = &mut self.member else { return Ok(()) };
        // The decoder of a complete member accepts no more bytes.
        match member.write(&[0]) {
            Ok(0) => self.finish_member(out),
            Ok(_) => Err(UnpackError::Data(io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(UnpackError::Data(error)),
        }
    }
}

/// Decodes the frames of a zstd file with the C library, which takes a third of the time of ruzstd.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) struct ZstdDecoder {
    decoder: zstd::stream::raw::Decoder<'static>,
    /// True if a frame has begun and not ended.
    is_in_frame: bool,
    /// True if the decoder may hold more output than there was room for.
    has_output: bool,
}

#[cfg(not(target_arch = "wasm32"))]
impl ZstdDecoder {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { decoder: zstd::stream::raw::Decoder::new()?, is_in_frame: false, has_output: false })
    }

    /// Decodes a part of `input`, appends the result to `out`, and removes the bytes that were read
    /// from `input`.
    pub(crate) fn decode(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Result<Unpacked, UnpackError> {
        use zstd::stream::raw::{InBuffer, Operation, OutBuffer};

        if input.is_empty() && !self.has_output {
            return Ok(Unpacked::All);
        }
        let start = out.len();
        out.try_reserve(STEP_BYTES).map_err(|_| UnpackError::OutOfMemory)?;
        let mut source = InBuffer::around(input);
        let mut target = OutBuffer::around_pos(out, start);
        let result = loop {
            match self.decoder.run(&mut source, &mut target) {
                Ok(hint) => self.is_in_frame = hint != 0,
                Err(error) => break Err(UnpackError::Data(error)),
            }
            self.has_output = self.is_in_frame && target.pos() == target.capacity();
            if self.has_output {
                break Ok(Unpacked::Partly);
            }
            if source.pos() == source.src.len() {
                break Ok(Unpacked::All);
            }
            if target.pos() == target.capacity() {
                break Ok(Unpacked::Partly);
            }
        };
        let read = source.pos();
        *input = &input[read..];
        result
    }

    /// Appends the end of the data to `out` after all of the input was decoded; fails if the input
    /// is cut off.
    pub(crate) fn finish(&mut self, _: &mut Vec<u8>) -> Result<(), UnpackError> {
        let is_cut_off = self.is_in_frame;
        if is_cut_off { Err(UnpackError::Data(io::ErrorKind::UnexpectedEof.into())) } else { Ok(()) }
    }
}

/// Decodes the frames of a zstd file with ruzstd, which WebAssembly builds use in place of the C
/// library.
#[cfg(target_arch = "wasm32")]
pub(crate) struct ZstdDecoder {
    decoder: Box<ruzstd::decoding::FrameDecoder>,
    /// The beginning of a block or of a frame's header, until it is complete.
    pending: Vec<u8>,
    /// True if a frame has begun and not ended.
    is_in_frame: bool,
}

/// Maximum length of a zstd frame's header, in bytes.
#[cfg(target_arch = "wasm32")]
const MAX_FRAME_HEADER: usize = 18;

#[cfg(target_arch = "wasm32")]
impl ZstdDecoder {
    pub(crate) fn new() -> io::Result<Self> {
        let decoder = Box::new(ruzstd::decoding::FrameDecoder::new());
        Ok(Self { decoder, pending: Vec::new(), is_in_frame: false })
    }

    /// Decodes a part of `input`, appends the result to `out`, and removes the bytes that were read
    /// from `input`.
    pub(crate) fn decode(&mut self, input: &mut &[u8], out: &mut Vec<u8>) -> Result<Unpacked, UnpackError> {
        self.pending.extend_from_slice(std::mem::take(input));
        self.decode_pending(out, false)
    }

    /// Appends the end of the data to `out` after all of the input was decoded; fails if the input
    /// is cut off.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), UnpackError> {
        while self.decode_pending(out, true)? == Unpacked::Partly {}
        let is_cut_off = self.is_in_frame || !self.pending.is_empty();
        if is_cut_off { Err(UnpackError::Data(io::ErrorKind::UnexpectedEof.into())) } else { Ok(()) }
    }

    /// Decodes the complete blocks that have arrived. With `is_complete`, no more input follows, so
    /// that an incomplete block is an error.
    fn decode_pending(&mut self, out: &mut Vec<u8>, is_complete: bool) -> Result<Unpacked, UnpackError> {
        use ruzstd::decoding::BlockDecodingStrategy::UptoBlocks;

        let data_error = |error| UnpackError::Data(io::Error::other(error));
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        let start = out.len();
        let result = loop {
            if out.len() - start >= STEP_BYTES {
                break Unpacked::Partly;
            }
            if !self.is_in_frame {
                rest = skip_frames(rest);
                if rest.is_empty() || !is_complete && (rest.len() < MAX_FRAME_HEADER || is_skippable_frame(rest)) {
                    break Unpacked::All;
                }
                self.decoder.reset(&mut rest).map_err(data_error)?;
                self.is_in_frame = true;
                continue;
            }
            if !is_complete && !has_block(rest) {
                break Unpacked::All;
            }
            let is_finished = self.decoder.decode_blocks(&mut rest, UptoBlocks(1)).map_err(data_error)?;
            out.try_reserve(self.decoder.can_collect()).map_err(|_| UnpackError::OutOfMemory)?;
            self.decoder.collect_to_writer(&mut *out).map_err(UnpackError::Data)?;
            self.is_in_frame = !is_finished;
        };
        self.pending = rest.to_vec();
        Ok(result)
    }
}

/// Returns true if `bytes` begin with a complete block of a zstd frame, with the checksum that may
/// follow the last block.
#[cfg(target_arch = "wasm32")]
fn has_block(bytes: &[u8]) -> bool {
    /// Length of the checksum that may follow the last block of a zstd frame, in bytes.
    const CHECKSUM_BYTES: usize = 4;
    let Some(&[a, b, c]) = bytes.first_chunk() else { return false };
    let header = u32::from_le_bytes([a, b, c, 0]);
    let is_repeated_byte = header >> 1 & 3 == 1;
    let len = if is_repeated_byte { 1 } else { (header >> 3) as usize };
    let is_last = header & 1 == 1;
    bytes.len() >= 3 + len + if is_last { CHECKSUM_BYTES } else { 0 }
}

/// The error of a decompression: damaged data, too much data for the limit, or too little memory.
pub(crate) enum UnpackError {
    /// The decoder refused the data.
    Data(io::Error),
    /// The unpacked data exceeds this limit, in bytes.
    TooLarge(u64),
    /// The unpacked data does not fit in memory.
    OutOfMemory,
}

impl UnpackError {
    /// Converts this to a read error. `offset` is the number of bytes that the decoder has read and
    /// `len` the number of bytes that have arrived; `format` is the name for the message, such as
    /// `gzip`.
    pub(crate) fn into_read_error(self, format: &str, offset: usize, len: usize) -> ReadError {
        match self {
            Self::Data(error) if is_end_of_input(&error) => ReadError::truncated(len).with_source(error),
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
