//! What kind of file this is, by its first bytes.

use crate::rmm::row::{COLUMNS, COMMENT};

/// What an input holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A recording of vramscope's own.
    Trace,
    /// A PyTorch snapshot, pickled.
    TorchPickle,
    /// A PyTorch snapshot as JSON.
    TorchJson,
    /// The log of RMM's `logging_resource_adaptor`, CSV.
    RmmLog,
}

/// What `bytes` hold, going by how they begin; packed bytes are to be [unpacked](crate::unpack()) first.
#[must_use]
pub fn sniff(bytes: &[u8]) -> Option<Source> {
    if bytes.starts_with(&vramscope_trace::MAGIC) {
        return Some(Source::Trace);
    }
    // Every pickle from protocol 2 on begins with PROTO and the protocol's number.
    if let [0x80, 2..=0x7f, ..] = bytes {
        return Some(Source::TorchPickle);
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if is_rmm_header(text) {
        return Some(Source::RmmLog);
    }
    match text.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'{' | b'[') => Some(Source::TorchJson),
        _ => None,
    }
}

/// Whether the first line names the columns of an RMM log. Later versions may add some; lines that someone has put before it, empty or
/// with a `#`, are no part of the log.
fn is_rmm_header(text: &[u8]) -> bool {
    let mut lines = text.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii_start);
    let line = lines.find(|line| !line.is_empty() && !line.starts_with(&[COMMENT])).unwrap_or_default();
    let mut names = line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    COLUMNS.iter().all(|column| names.next().is_some_and(|name| name.eq_ignore_ascii_case(column.as_bytes())))
}
