//! What a snapshot says of the allocator's settings, in two ways: the text that the program last gave, and some of what held when
//! the snapshot was taken. The text alone names the rest, and may be older than a change at run time or of before a restart of it.

use serde_json::Value;
use vramscope_pool::Settings;

use super::key::Key;
use super::scalar::Scalar;

/// How much the settings may hold; PyTorch's are about 700 bytes.
pub(crate) const MAX_PLAIN_BYTES: usize = 32 << 10;
/// How long they may be as text, in which a character may take six bytes. A recording cuts off much longer ones.
const MAX_JSON_BYTES: usize = 48 << 10;
/// What each value of them counts for, its text not counted. No less than it takes to write it.
pub(crate) const PLAIN_VALUE_BYTES: usize = 32;

/// The settings as a snapshot has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RecordedSettings {
    /// Whether the snapshot holds any.
    pub(crate) present: bool,
    /// The recorded program knew that the history had lost its beginning.
    pub(crate) overflowed: bool,
    /// The text that was last given.
    pub(crate) text: String,
    /// Each where it is said.
    pub(crate) max_split_size: Option<Option<u64>>,
    pub(crate) garbage_collection_threshold: Option<f64>,
    pub(crate) expandable_segments: Option<bool>,
    pub(crate) divisions: Option<[u64; 16]>,
    /// All of it as JSON, with what is not looked at here.
    pub(crate) json: String,
}

/// A setting's value as the snapshot's rows take theirs.
fn scalar(value: &Value) -> Scalar<'_> {
    match value {
        Value::Null => Scalar::Nothing,
        Value::Bool(value) => Scalar::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Scalar::Int(number),
            (_, Some(number), _) => Scalar::Unsigned(number),
            (.., Some(number)) => Scalar::Float(number),
            _ => Scalar::Other,
        },
        Value::String(text) => Scalar::Text(text),
        Value::Array(_) | Value::Object(_) => Scalar::Other,
    }
}

impl RecordedSettings {
    /// The settings that a snapshot's `allocator_settings` say.
    pub(crate) fn read(settings: &Value) -> Self {
        let json = Some(settings.to_string()).filter(|json| json.len() <= MAX_JSON_BYTES).unwrap_or_default();
        let mut recorded = Self { json, ..Self::default() };
        let Value::Object(settings) = settings else { return recorded };
        recorded.present = true;
        for (name, value) in settings {
            match (Key::of(name), value) {
                (Some(Key::Divisions), Value::Object(divisions)) => {
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

    fn set(&mut self, key: Key, value: Scalar<'_>) {
        match key {
            Key::AllocConf => value.text().unwrap_or("").clone_into(&mut self.text),
            // -1 stands for "no limit", and so does the same without a sign.
            Key::MaxSplitSize => self.max_split_size = Some(value.count().filter(|&size| size != u64::MAX)),
            Key::GarbageCollectionThreshold => self.garbage_collection_threshold = value.number(),
            Key::ExpandableSegments => self.expandable_segments = Some(value.is_true()),
            Key::Divisions => self.divisions = Some([value.count().unwrap_or(0); 16]),
            Key::Overflowed => self.overflowed = value.is_true(),
            _ => {}
        }
    }

    /// Sets the row of the table of divisions that is for sizes of `mib`, a power of two.
    fn set_division(&mut self, mib: &str, value: Scalar<'_>) {
        let table = self.divisions.get_or_insert_default();
        let place = mib.parse::<u64>().ok().and_then(u64::checked_ilog2);
        if let Some(division) = place.and_then(|place| table.get_mut(place as usize)) {
            *division = value.count().unwrap_or(0);
        }
    }

    /// The settings that held: what is said of them by themselves, the rest from the text.
    pub(crate) fn effective(&self) -> Settings {
        let text = Settings::parse(&self.text).unwrap_or_default();
        Settings {
            max_split_size: self.max_split_size.unwrap_or(text.max_split_size),
            garbage_collection_threshold: self
                .garbage_collection_threshold
                .unwrap_or(text.garbage_collection_threshold),
            expandable_segments: self.expandable_segments.unwrap_or(text.expandable_segments),
            roundup_power2_divisions: self.divisions.unwrap_or(text.roundup_power2_divisions),
            ..text
        }
    }

    /// The settings that held as text: the program's own where it says them, and where it cannot be read.
    pub(crate) fn alloc_conf(&self) -> String {
        let settings = self.effective();
        let conf = settings.to_conf();
        let says = |text: &str| Settings::parse(text).is_ok_and(|said| said == settings);
        let is_stale = Settings::parse(&self.text).is_ok() && !says(&self.text);
        // Damaged settings may be none that a text could give.
        if is_stale && says(&conf) { conf } else { self.text.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn check(recorded: &RecordedSettings, alloc_conf: &str) {
        assert_eq!(recorded.alloc_conf(), alloc_conf, "{recorded:?}");
    }

    #[test]
    fn the_programs_own_text_is_kept_where_it_says_what_held() {
        let text = "backend:native, max_split_size_mb:32";
        let recorded = RecordedSettings { text: text.to_owned(), ..RecordedSettings::default() };
        check(&recorded, text);
        check(&RecordedSettings { max_split_size: Some(Some(32 * MIB)), ..recorded }, text);
        check(&RecordedSettings::default(), "");
    }

    #[test]
    fn what_held_is_said_where_the_text_does_not() {
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
    fn a_text_that_cannot_be_read_is_kept() {
        let recorded = RecordedSettings {
            text: "backend:cudaMallocAsync".to_owned(),
            max_split_size: Some(Some(32 * MIB)),
            ..RecordedSettings::default()
        };
        check(&recorded, "backend:cudaMallocAsync");
        assert_eq!(recorded.effective().max_split_size, Some(32 * MIB));
    }

    #[test]
    fn settings_that_no_text_can_give_leave_the_text() {
        let text = "expandable_segments:True";
        let recorded = RecordedSettings { text: text.to_owned(), ..RecordedSettings::default() };
        check(&RecordedSettings { max_split_size: Some(Some(1)), ..recorded.clone() }, text);
        check(&RecordedSettings { divisions: Some([3; 16]), ..recorded.clone() }, text);
        check(&RecordedSettings { garbage_collection_threshold: Some(f64::NAN), ..recorded }, text);
    }
}
