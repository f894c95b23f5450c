//! Reads traces of `torch.profiler` (Kineto): JSON in the trace event format of Chromium, with an
//! event for each allocation and free if the program was profiled with `profile_memory=True`.
//!
//! A trace lacks some facts that a recording needs:
//!
//! - *Requested sizes and streams.* Sizes are those of blocks, after rounding.
//! - *Segments*, and what was allocated before the trace. An event has the totals of allocated and
//!   reserved bytes after it. If the trace begins with an empty allocator, `segments` rebuilds the
//!   segments. Else a block without a known address stands for the older memory, and reserved
//!   memory without a known address follows the addresses of all blocks.
//! - *When a free completes.* It completes at once.
//! - *Lines.* A Python function has the line on which it begins.
//!
//! Reading order: `splitter` (finds events while bytes arrive), `event` and `trace` (what is kept
//! of them), `calls` (sites), `segments`, `device` and `write` (events of the recording).

mod calls;
mod device;
mod event;
mod library_files;
mod segments;
mod splitter;
mod trace;
mod used_addresses;
mod write;

pub(crate) use trace::KinetoReader;
pub(crate) use write::write;

/// Returns true if a JSON text that begins with `text` is a profiler trace, false if it is another
/// text; `None` if more bytes are needed to tell.
pub(crate) fn is_trace(text: &[u8]) -> Option<bool> {
    /// The outermost keys of a trace that come before the list of events.
    const KEYS: [&[u8]; 6] = [
        b"schemaVersion",
        b"deviceProperties",
        b"trace_id",
        b"displayTimeUnit",
        b"baseTimeNanoseconds",
        b"record_shapes",
    ];
    let (mut splitter, mut at) = (splitter::Splitter::new(), 0);
    loop {
        match splitter.next(text, &mut at) {
            Err(_) => return Some(false),
            Ok(None) if splitter.is_complete() => return Some(false),
            Ok(None) => return splitter.is_in_events().then_some(true),
            Ok(Some(splitter::Item::Event(_))) => return Some(true),
            Ok(Some(splitter::Item::Value { key, .. })) if KEYS.contains(&&text[key.clone()]) => return Some(true),
            Ok(Some(splitter::Item::Value { .. })) => {}
        }
    }
}
