//! Compression: none, LZ4, or Zstandard.
//!
//! What is written natively is packed with Zstandard. In the browser, where its C library is not to be had, LZ4 is written; both
//! are read everywhere.

/// Effort of Zstandard: on the columns of events 1 makes 4 % more bytes in half the time, 9 makes 2 % fewer in three times the time.
#[cfg(not(target_arch = "wasm32"))]
const ZSTD_LEVEL: i32 = 3;
/// Fewer bytes than this are left as they are: what a frame says of itself takes a dozen.
const MIN_LEN: usize = 24;

/// How bytes are packed, as a recording says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// As they are.
    Plain,
    /// An LZ4 block.
    Lz4,
    /// A Zstandard frame, which says its own unpacked length and carries no checksum.
    Zstd,
}

impl Packing {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Plain => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Plain),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Packs bytes.
#[derive(Default)]
pub(crate) struct Packer {
    #[cfg(not(target_arch = "wasm32"))]
    zstd: Option<zstd::bulk::Compressor<'static>>,
    packed: Vec<u8>,
    /// Columns were packed that are on their way into a chunk, which is not to be packed once more.
    pub(crate) has_packed_columns: bool,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

/// Nothing that it keeps is more than a place to work in.
impl Clone for Packer {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Packer {
    /// Packs `raw`, or leaves it as it is where that takes no more room.
    pub(crate) fn pack<'a>(&'a mut self, raw: &'a [u8]) -> (Packing, &'a [u8]) {
        if raw.len() < MIN_LEN {
            return (Packing::Plain, raw);
        }
        match self.compress(raw) {
            Some(packing) if self.packed.len() < raw.len() => (packing, &self.packed),
            _ => (Packing::Plain, raw),
        }
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn compress(&mut self, raw: &[u8]) -> Option<Packing> {
        let zstd = match &mut self.zstd {
            Some(zstd) => zstd,
            none => none.insert(zstd::bulk::Compressor::new(ZSTD_LEVEL).ok()?),
        };
        self.packed.clear();
        self.packed.reserve(zstd::zstd_safe::compress_bound(raw.len()));
        zstd.compress_to_buffer(raw, &mut self.packed).ok()?;
        Some(Packing::Zstd)
    }

    #[cfg(target_arch = "wasm32")]
    fn compress(&mut self, raw: &[u8]) -> Option<Packing> {
        self.packed = lz4_flex::block::compress(raw);
        Some(Packing::Lz4)
    }
}

/// Unpacks bytes.
#[derive(Default)]
pub(crate) struct Unpacker {
    #[cfg(not(target_arch = "wasm32"))]
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    #[cfg(target_arch = "wasm32")]
    zstd: ruzstd::decoding::FrameDecoder,
    unpacked_bytes: u64,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

/// Nothing that it keeps is more than a place to work in.
impl Clone for Unpacker {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Unpacker {
    /// Bytes that were unpacked so far.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        self.unpacked_bytes
    }

    /// Unpacks `stored` to the end of `out`, as exactly `raw_len` bytes.
    pub(crate) fn unpack(
        &mut self,
        packing: Packing,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let start = out.len();
        self.unpacked_bytes += raw_len as u64;
        if packing == Packing::Plain {
            out.extend_from_slice(stored);
        } else {
            out.resize(start + raw_len, 0);
            let into = &mut out[start..];
            let len = match packing {
                Packing::Lz4 => lz4_flex::block::decompress_into(stored, into)
                    .map_err(|error| format!("it does not unpack: {error}")),
                _ => self.unpack_zstd(stored, into),
            }?;
            out.truncate(start + len);
        }
        let len = out.len() - start;
        if len == raw_len { Ok(()) } else { Err(format!("it unpacks to {len} bytes, not the {raw_len} it promises")) }
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn unpack_zstd(&mut self, stored: &[u8], into: &mut [u8]) -> Result<usize, String> {
        let failed = |error: std::io::Error| format!("it does not unpack: {error}");
        let zstd = match &mut self.zstd {
            Some(zstd) => zstd,
            none => none.insert(zstd::bulk::Decompressor::new().map_err(failed)?),
        };
        zstd.decompress_to_buffer(stored, into).map_err(failed)
    }

    #[cfg(target_arch = "wasm32")]
    fn unpack_zstd(&mut self, stored: &[u8], into: &mut [u8]) -> Result<usize, String> {
        self.zstd.decode_all(stored, into).map_err(|error| format!("it does not unpack: {error}"))
    }
}
