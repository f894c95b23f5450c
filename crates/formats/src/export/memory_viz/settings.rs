//! `allocator_settings`: the settings as text, and one by one.

use std::io;

use serde_json::Value;
use vramscope_pool::Settings;
use vramscope_trace::Info;

use super::notation::Notation;

/// What says that entries are missing.
const OVERFLOWED: &str = "trace_alloc_overflowed";
/// What PyTorch calls the powers of two, in MiB, that roundings are set for.
const DIVISION_NAMES: [&str; 16] =
    ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768"];

/// Writes the settings: as a snapshot said them that the recording was made of, else what the allocator's own syntax says; of settings
/// that cannot be read, only the text. `overflowed` says that the history has lost its beginning where nothing else shows it.
pub(super) fn write(out: &mut impl Notation, info: &Info, overflowed: bool) -> io::Result<()> {
    out.begin_dict()?;
    match serde_json::from_str(&info.source_settings) {
        Ok(Value::Object(settings)) => {
            for (name, value) in settings.iter().filter(|(name, _)| *name != OVERFLOWED) {
                out.own_key(name)?;
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

fn write_conf(out: &mut impl Notation, alloc_conf: &str) -> io::Result<()> {
    out.key("PYTORCH_CUDA_ALLOC_CONF")?;
    out.text(alloc_conf)?;
    let Ok(settings) = Settings::parse(alloc_conf) else { return Ok(()) };
    out.key("max_split_size")?;
    // No limit is -1 in PyTorch.
    out.number(settings.max_split_size.map_or(-1, i128::from))?;
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

/// Writes a value as it is. It is no deeper than the reader of JSON allows, which is 128 levels.
fn write_value(out: &mut impl Notation, value: &Value) -> io::Result<()> {
    match value {
        Value::Null => out.nothing(),
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
                out.own_key(name)?;
                write_value(out, value)?;
            }
            out.end_dict()
        }
    }
}
