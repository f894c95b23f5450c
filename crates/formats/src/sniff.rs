//! Recognizes formats by the first bytes of a file.

use crate::buffers::is_buffer_table;
use crate::kineto;
use crate::rmm::log::{COLUMNS, COMMENT};
use crate::timeline;

/// A file format that this crate recognizes. [`import()`](crate::import()) reads all of them except
/// vramscope's own recordings, which `vramscope_trace::Recording` reads, and tables of buffers,
/// which [`BufferTable`](crate::BufferTable) reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFormat {
    /// A recording of vramscope (`.vram`).
    Recording,
    /// A PyTorch snapshot as a pickle.
    TorchPickle,
    /// A PyTorch snapshot as JSON.
    TorchJson,
    /// A trace of `torch.profiler` (Kineto) as JSON.
    KinetoTrace,
    /// A memory timeline of `torch.profiler` as JSON.
    MemoryTimeline,
    /// The CSV log of RMM's `logging_resource_adaptor`.
    RmmLog,
    /// A table of buffers to place, as MiniMalloc reads it.
    BufferTable,
}

/// Returns the format of a file that begins with `bytes`, or `None` if it is unknown.
///
/// Compressed files and HTML exports must be [unpacked](crate::unpack()) first;
/// [`is_packed`](crate::is_packed) recognizes them.
///
/// ```
/// use vramscope_formats::{InputFormat, sniff};
///
/// assert_eq!(sniff(b"\x80\x04\x95"), Some(InputFormat::TorchPickle));
/// assert_eq!(sniff(br#"{"segments": []}"#), Some(InputFormat::TorchJson));
/// assert_eq!(sniff(b"PK\x03\x04"), None);
/// ```
#[must_use]
pub fn sniff(bytes: &[u8]) -> Option<InputFormat> {
    if bytes.starts_with(&vramscope_trace::MAGIC) {
        return Some(InputFormat::Recording);
    }
    if is_pickle(bytes) {
        return Some(InputFormat::TorchPickle);
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if is_rmm_header(text) {
        return Some(InputFormat::RmmLog);
    }
    if is_buffer_table(text) {
        return Some(InputFormat::BufferTable);
    }
    match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'[') if timeline::is_timeline(text) => Some(InputFormat::MemoryTimeline),
        Some(b'{') if kineto::is_trace(text) == Some(true) => Some(InputFormat::KinetoTrace),
        Some(b'{' | b'[') => Some(InputFormat::TorchJson),
        _ => None,
    }
}

/// Returns true if `bytes` begin a pickle: since protocol 2 every pickle begins with PROTO and the
/// protocol number.
pub(crate) fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=0x7f, ..])
}

/// Returns true if the first line of `text` names the columns of an RMM log; false for any other
/// line. Further columns are allowed; empty lines and comments before that line are skipped.
fn is_rmm_header(text: &[u8]) -> bool {
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_start);
    let line = lines.find(|line| !line.is_empty() && !line.starts_with(&[COMMENT])).unwrap_or_default();
    let mut names = line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    COLUMNS.iter().all(|column| names.next().is_some_and(|name| name.eq_ignore_ascii_case(column.as_bytes())))
}
