//! Writes `allocator_settings`: the settings as text, and some of them as values.

use std::io;

use serde_json::Value;
use vramscope_pool::RecordedConf;
use vramscope_trace::RecordingInfo;

use super::snapshot_writer::SnapshotWriter;

/// The key in `allocator_settings` that is true if the history lost entries.
const OVERFLOWED: &str = "trace_alloc_overflowed";
/// PyTorch's keys for `roundup_power2_divisions`: sizes in MiB, powers of two, for each of which a
/// number of divisions is configured.
const DIVISION_NAMES: [&str; 16] =
    ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768"];

/// Writes the snapshot's `allocator_settings`. If the recording was imported, these are the
/// settings of the imported snapshot, otherwise the recording's own. If the settings select another
/// allocator, only their text is written. If `overflowed` is true, adds `trace_alloc_overflowed`.
pub(super) fn write(out: &mut impl SnapshotWriter, info: &RecordingInfo, overflowed: bool) -> io::Result<()> {
    out.begin_dict()?;
    match serde_json::from_str(&info.source_settings) {
        Ok(Value::Object(settings)) => {
            for (name, value) in settings.iter().filter(|(name, _)| *name != OVERFLOWED) {
                out.dynamic_key(name)?;
                write_value(out, value)?;
            }
        }
        _ => write_conf(out, &info.alloc_conf)?,
    }
    if overflowed {
        out.key(OVERFLOWED)?;
        out.boolean(true)?;
    }
    out.end_dict()
}

/// Writes the settings text `alloc_conf` and, if it selects PyTorch's own allocator, the values of
/// the settings that PyTorch lists.
fn write_conf(out: &mut impl SnapshotWriter, alloc_conf: &str) -> io::Result<()> {
    out.key("PYTORCH_CUDA_ALLOC_CONF")?;
    out.text(alloc_conf)?;
    let recorded = RecordedConf::parse(alloc_conf);
    if recorded.other_backend.is_some() {
        return Ok(());
    }
    let settings = recorded.settings;
    out.key("max_split_size")?;
    // PyTorch writes -1 for "no limit".
    out.number(settings.max_split_size_bytes.map_or(-1, i128::from))?;
    out.key("garbage_collection_threshold")?;
    out.float(settings.garbage_collection_threshold)?;
    out.key("expandable_segments")?;
    out.boolean(settings.expandable_segments)?;
    out.key("roundup_power2_divisions")?;
    out.begin_dict()?;
    for (name, divisions) in DIVISION_NAMES.into_iter().zip(settings.roundup_power2_divisions) {
        out.number_field(name, divisions)?;
    }
    out.end_dict()
}

/// Writes any JSON value. Recursion is bounded, because serde_json parses at most 128 levels.
fn write_value(out: &mut impl SnapshotWriter, value: &Value) -> io::Result<()> {
    match value {
        Value::Null => out.null(),
        Value::Bool(value) => out.boolean(*value),
        Value::Number(number) => match number.as_i64().map(i128::from).or(number.as_u64().map(i128::from)) {
            Some(whole) => out.number(whole),
            None => out.float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => out.text(text),
        Value::Array(items) => {
            out.begin_list()?;
            items.iter().try_for_each(|item| write_value(out, item))?;
            out.end_list()
        }
        Value::Object(fields) => {
            out.begin_dict()?;
            for (name, value) in fields {
                out.dynamic_key(name)?;
                write_value(out, value)?;
            }
            out.end_dict()
        }
    }
}
