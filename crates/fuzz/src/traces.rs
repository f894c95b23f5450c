//! The fuzz target for traces of PyTorch's profiler.

use std::fmt::Write;

use vramscope_trace::{Counters, DeviceId};

use crate::readers::read;

/// Number of input bytes of an event.
const EVENT_BYTES: usize = 6;
/// Beginning of a trace, up to its events.
const START: &str = r#"{"schemaVersion": 1, "baseTimeNanoseconds": 5, "traceEvents": ["#;

/// The text of a trace, and the totals after its memory events.
struct Trace {
    text: String,
    /// Allocated and reserved bytes after each event. Events of one time may change their order.
    totals: Vec<[u64; 2]>,
}

/// Returns a trace whose memory events, spans and arrows the input describes.
fn trace(data: &[u8]) -> Trace {
    let (mut text, mut totals) = (START.to_owned(), Vec::new());
    let mut time = 0u64;
    for (number, event) in data.chunks_exact(EVENT_BYTES).enumerate() {
        let &[kind, place, size, more, thread, step] = event else { continue };
        if number > 0 {
            text.push(',');
        }
        time += u64::from(step);
        let thread = thread % 3;
        let _ = match kind % 8 {
            0..=3 => {
                let bytes = (i64::from(size) + 1) * if kind % 2 == 0 { 512 } else { -512 };
                let address = 4096 + u64::from(place) * 512;
                let allocated = u64::from(more) * 512;
                let reserved = allocated + u64::from(size) * 1024;
                totals.push([allocated, reserved]);
                write!(
                    text,
                    r#"{{"ph": "i", "name": "[memory]", "pid": 1, "tid": {thread}, "ts": {time}.{step:03},
                    "args": {{"Bytes": {bytes}, "Addr": {address}, "Total Allocated": {allocated},
                    "Total Reserved": {reserved}, "Device Type": 1, "Device Id": 0}}}}"#
                )
            }
            4 | 5 => {
                let (category, name) = match place % 4 {
                    0 => ("cpu_op", "aten::mm"),
                    1 => ("python_function", "train.py(8): step"),
                    2 => ("python_function", "nn.Module: Linear_0"),
                    _ => ("user_annotation", "ProfilerStep#1"),
                };
                write!(
                    text,
                    r#"{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": 1, "tid": {thread},
                    "ts": {time}, "dur": {more}.5}}"#
                )
            }
            kind => {
                let end = if kind == 6 { "s" } else { "f" };
                write!(
                    text,
                    r#"{{"ph": "{end}", "cat": "fwdbwd", "id": {place}, "pid": 1, "tid": {thread}, "ts": {time}}}"#
                )
            }
        };
    }
    text += "]}";
    Trace { text, totals }
}

/// Reads a trace: the input itself, or one whose events the input describes. The memory state then
/// ends with the totals of an event.
pub fn kineto(data: &[u8]) {
    if data.first() == Some(&b'{') {
        read(data);
        return;
    }
    let Trace { text, totals } = trace(data);
    let Some((tracker, imported)) = read(text.as_bytes()) else { return };
    let Some(device) = tracker.state.device(DeviceId(0)) else { return };
    let Counters { allocated, reserved, .. } = device.counters();
    // The totals of an impossible trace may be below its live blocks.
    let is_possible = imported.contradictions == 0 && !totals.is_empty();
    assert!(!is_possible || totals.contains(&[allocated, reserved]), "the state ends with the totals: {text}");
    assert!(allocated <= reserved, "blocks lie in segments: {text}");
    assert_eq!(device.inconsistencies(), 0, "events fit to the state: {text}");
}

/// Returns traces, whole and as descriptions.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let described: [&[u8]; 3] = [
        b"\x04\x01\0\xff\0\x01\0\x08\x03\x04\0\x01\x01\x08\x03\0\0\x01",
        b"\x06\x01\0\0\0\x01\x04\0\0\x09\x01\x01\x07\x01\0\0\x01\0\0\x10\x01\x02\x01\x01",
        b"\x01\x08\x03\x09\0\x01\0\x08\x03\x0d\0\x01\0\x09\x03\x11\0\x01\x01\x08\x07\x01\0\x01",
    ];
    let texts = described.iter().map(|data| trace(data).text.into_bytes());
    texts.chain(described.iter().map(|data| data.to_vec())).collect()
}
