//! `allocator_settings`: the settings as text, and one by one.

use std::io;

use vramscope_pool::Settings;

use super::notation::Notation;

/// What PyTorch calls the powers of two, in MiB, that roundings are set for.
const DIVISION_NAMES: [&str; 16] =
    ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1024", "2048", "4096", "8192", "16384", "32768"];

/// Writes the settings that `alloc_conf` says; of one that cannot be read, only the text. `overflowed` says that the history has lost
/// its beginning where nothing else shows it.
pub(super) fn write(out: &mut impl Notation, alloc_conf: &str, overflowed: bool) -> io::Result<()> {
    out.begin_dict()?;
    out.key("PYTORCH_CUDA_ALLOC_CONF")?;
    out.text(alloc_conf)?;
    if let Ok(settings) = Settings::parse(alloc_conf) {
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
        out.end_dict()?;
    }
    if overflowed {
        out.key("trace_alloc_overflowed")?;
        out.boolean(true)?;
    }
    out.end_dict()
}
