//! The allocator settings of a snapshot. PyTorch writes the settings text that the program last
//! passed, and the effective values of some settings. Other settings are only in the text, which
//! may be outdated.

use serde_json::Value;
use vramscope_pool::{RecordedConf, Settings};

use super::key::SnapshotKey;
use super::scalar::Scalar;

/// Maximum size of a snapshot's allocator settings, in bytes; larger settings are ignored and
/// counted as invalid. PyTorch's settings take about 700 bytes.
pub(crate) const MAX_SETTINGS_BYTES: usize = 32 << 10;
/// Maximum size of the settings as JSON text, in bytes; longer text is dropped, because a recording
/// would truncate it.
const MAX_JSON_BYTES: usize = 48 << 10;
/// Number of bytes that each value of the settings adds, besides its text, to the size that
/// [`MAX_SETTINGS_BYTES`] limits.
pub(crate) const VALUE_BYTES: usize = 32;

/// The allocator settings that a snapshot contains: the text of `PYTORCH_CUDA_ALLOC_CONF`, and the
/// values that were in effect, which PyTorch lists for some settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecordedSettings {
    /// True if the snapshot contains settings.
    pub(crate) present: bool,
    /// True if the recorded program reported that the history lost its beginning.
    pub(crate) overflowed: bool,
    /// `PYTORCH_CUDA_ALLOC_CONF` as it was last passed.
    pub(crate) text: String,
    /// Effective value of the setting; `None` if the snapshot lacks it. The same holds for the next
    /// three fields.
    pub(crate) max_split_size: Option<Option<u64>>,
    pub(crate) garbage_collection_threshold: Option<f64>,
    pub(crate) expandable_segments: Option<bool>,
    pub(crate) divisions: Option<[u64; 16]>,
    /// All settings as JSON, including unknown ones.
    pub(crate) json: String,
}

/// Converts a JSON value to a [`Scalar`]; lists and objects become [`Scalar::Other`].
fn scalar(value: &Value) -> Scalar<'_> {
    match value {
        Value::Null => Scalar::Null,
        Value::Bool(value) => Scalar::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Scalar::Int(number),
            (_, Some(number), _) => Scalar::Unsigned(number),
            (.., Some(number)) => Scalar::Float(number),
            _ => Scalar::Other,
        },
        Value::String(text) => Scalar::Text(text, None),
        Value::Array(_) | Value::Object(_) => Scalar::Other,
    }
}

impl RecordedSettings {
    /// Reads a snapshot's `allocator_settings`. Unknown settings are kept only in the JSON text.
    pub(crate) fn read(settings: &Value) -> Self {
        let json = Some(settings.to_string()).filter(|json| json.len() <= MAX_JSON_BYTES).unwrap_or_default();
        let mut recorded = Self { json, ..Self::default() };
        let Value::Object(settings) = settings else { return recorded };
        recorded.present = true;
        for (name, value) in settings {
            match (SnapshotKey::from_name(name), value) {
                (Some(SnapshotKey::Divisions), Value::Object(divisions)) => {
                    for (mib, division) in divisions {
                        recorded.set_division(mib, scalar(division));
                    }
                }
                (Some(key), value) => recorded.set(key, scalar(value)),
                (None, _) => {}
            }
        }
        recorded
    }

    /// Sets the field of this struct for a known setting; ignores other keys. A value of the wrong
    /// type becomes a default, such as no limit, false or an empty text.
    fn set(&mut self, key: SnapshotKey, value: Scalar<'_>) {
        match key {
            SnapshotKey::AllocConf => value.as_str().unwrap_or("").clone_into(&mut self.text),
            // PyTorch writes -1 for "no limit", which may appear as an unsigned number.
            SnapshotKey::MaxSplitSize => self.max_split_size = Some(value.as_u64().filter(|&size| size != u64::MAX)),
            SnapshotKey::GarbageCollectionThreshold => self.garbage_collection_threshold = value.as_f64(),
            SnapshotKey::ExpandableSegments => self.expandable_segments = Some(value.is_true()),
            SnapshotKey::Divisions => self.divisions = Some([value.as_u64().unwrap_or(0); 16]),
            SnapshotKey::Overflowed => self.overflowed = value.is_true(),
            _ => {}
        }
    }

    /// Sets the number of rounding divisions (`roundup_power2_divisions`) for requests from `mib`
    /// MiB, a power of two, to the next power of two. Ignores sizes outside of PyTorch's table.
    fn set_division(&mut self, mib: &str, value: Scalar<'_>) {
        let table = self.divisions.get_or_insert_default();
        let index = mib.parse::<u64>().ok().and_then(u64::checked_ilog2);
        if let Some(division) = index.and_then(|index| table.get_mut(index as usize)) {
            *division = value.as_u64().unwrap_or(0);
        }
    }

    /// Returns the settings that were in effect: the values that the snapshot lists, and for all
    /// other settings the values in the text of `PYTORCH_CUDA_ALLOC_CONF`.
    pub(crate) fn effective(&self) -> Settings {
        let text = RecordedConf::parse(&self.text).settings;
        Settings {
            max_split_size_bytes: self.max_split_size.unwrap_or(text.max_split_size_bytes),
            garbage_collection_threshold: self
                .garbage_collection_threshold
                .unwrap_or(text.garbage_collection_threshold),
            expandable_segments: self.expandable_segments.unwrap_or(text.expandable_segments),
            roundup_power2_divisions: self.divisions.unwrap_or(text.roundup_power2_divisions),
            ..text
        }
    }

    /// Returns the effective settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`. Keeps the
    /// program's own text if it matches the recorded values. Otherwise the effective settings
    /// replace the text, or are appended to it if it has settings that the pool does not know or
    /// follow.
    pub(crate) fn alloc_conf(&self) -> String {
        let settings = self.effective();
        let text = RecordedConf::parse(&self.text);
        let (conf, followed) =
            (settings.to_conf(), format!("{},{}", self.text.trim_end_matches(','), settings.to_conf()));
        let has_more = text.skipped_count > 0 || !text.unfollowed.is_empty();
        let candidates = if has_more { [&self.text, &followed, &conf] } else { [&self.text, &conf, &followed] };
        let is_equal = |conf: &str| RecordedConf::parse(conf).settings == settings;
        // Damaged settings may have values that no text can express.
        candidates.into_iter().find(|conf| is_equal(conf)).unwrap_or(&self.text).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Checks the settings text that follows from recorded settings.
    fn check(recorded: &RecordedSettings, alloc_conf: &str) {
        assert_eq!(recorded.alloc_conf(), alloc_conf, "{recorded:?}");
    }

    #[test]
    fn text_that_matches_the_recorded_values_is_kept() {
        let text = "backend:native, max_split_size_mb:32";
        let recorded = RecordedSettings { text: text.to_owned(), ..RecordedSettings::default() };
        check(&recorded, text);
        check(&RecordedSettings { max_split_size: Some(Some(32 * MIB)), ..recorded }, text);
        check(&RecordedSettings::default(), "");
    }

    #[test]
    fn recorded_values_override_the_text() {
        let recorded = RecordedSettings {
            text: "large_segment_size_mb:64,garbage_collection_threshold:0.5".to_owned(),
            max_split_size: Some(Some(128 * MIB)),
            garbage_collection_threshold: Some(0.0),
            expandable_segments: Some(true),
            divisions: Some([4; 16]),
            ..RecordedSettings::default()
        };
        let conf = "large_segment_size_mb:64,max_split_size_mb:128,roundup_power2_divisions:4,expandable_segments:True";
        check(&recorded, conf);
        assert_eq!(Settings::parse(conf), Ok(recorded.effective()));
        check(
            &RecordedSettings { expandable_segments: Some(true), ..RecordedSettings::default() },
            "expandable_segments:True",
        );
    }

    #[test]
    fn settings_that_only_the_text_has_are_kept() {
        let recorded = RecordedSettings {
            text: "backend:cudaMallocAsync".to_owned(),
            max_split_size: Some(Some(32 * MIB)),
            ..RecordedSettings::default()
        };
        check(&recorded, "backend:cudaMallocAsync,max_split_size_mb:32");
        let text = "page_size:1g,throw_on_cudamalloc_oom:True,max_split_size_mb:64".to_owned();
        let recorded = RecordedSettings { text: text.clone(), ..recorded };
        check(&recorded, &format!("{text},max_split_size_mb:32"));
        assert_eq!(recorded.effective().max_split_size_bytes, Some(32 * MIB));
        check(&RecordedSettings { text: text.clone(), ..RecordedSettings::default() }, &text);
    }

    #[test]
    fn inexpressible_values_leave_the_text_unchanged() {
        let text = "expandable_segments:True";
        let recorded = RecordedSettings { text: text.to_owned(), ..RecordedSettings::default() };
        check(&RecordedSettings { max_split_size: Some(Some(1)), ..recorded.clone() }, text);
        check(&RecordedSettings { divisions: Some([3; 16]), ..recorded.clone() }, text);
        check(&RecordedSettings { garbage_collection_threshold: Some(f64::NAN), ..recorded }, text);
    }
}
