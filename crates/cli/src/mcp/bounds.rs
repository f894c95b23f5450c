//! Keeps the results of tools small: an assistant's context is limited.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::error::{CommandError, Result};

/// Default of the maximum number of entries of each list in a result.
pub(super) const DEFAULT_LIMIT: usize = 20;
/// Maximum number of entries of each list that a client may ask for.
pub(super) const MAX_LIMIT: usize = 200;
/// Maximum size of a result as JSON, in bytes. Lists and texts are shortened further until it fits.
pub(super) const MAX_RESULT_BYTES: usize = 48 << 10;
/// Maximum number of characters of a text in a result, before it is shortened further.
const MAX_TEXT_CHARS: usize = 2000;
/// Texts are not shortened below this number of characters.
const MIN_TEXT_CHARS: usize = 100;

/// A tool's result: the report, and the parts that were left out.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Output<T> {
    /// The object that the command with the tool's name prints with --json.
    #[serde(flatten)]
    report: T,
    /// Lists with more entries than the result has.
    left_out: Vec<LeftOut>,
    /// Notes on how the recording was read, such as damage.
    messages: Vec<String>,
}

/// A list of a result that was shortened.
#[derive(Debug, Serialize, JsonSchema)]
struct LeftOut {
    /// Keys that lead to the list, such as devices.rows.
    list: String,
    /// Number of entries that the result does not have, in all lists of that name.
    entries: u64,
}

/// Returns the limit if it is from 1 to [`MAX_LIMIT`], else an error.
pub(super) fn checked_limit(limit: usize) -> Result<usize> {
    if (1..=MAX_LIMIT).contains(&limit) {
        return Ok(limit);
    }
    Err(CommandError::new(format_args!("limit: {limit} is not possible: use 1 to {MAX_LIMIT}")))
}

/// Returns a report as a tool's result: at most `limit` entries of each list, and at most
/// [`MAX_RESULT_BYTES`].
pub(super) fn bounded(report: &impl Serialize, limit: usize, messages: Vec<String>) -> Value {
    // `Value` cannot hold integers of more than 64 bits. Through text, they become floats.
    let report = serde_json::to_value(report).unwrap_or_else(|_| {
        let text = serde_json::to_string(report).expect("finite numbers and text always serialize");
        serde_json::from_str(&text).expect("serialized text is JSON")
    });
    let messages = Value::from(messages);
    let (mut limit, mut max_chars) = (limit, MAX_TEXT_CHARS);
    loop {
        let mut left_out = BTreeMap::new();
        let report = shortened(&report, "", limit, max_chars, &mut left_out);
        let left_out = left_out.into_iter().map(|(list, entries)| LeftOut { list, entries }).collect();
        let messages = match shortened(&messages, "", limit, max_chars, &mut BTreeMap::new()) {
            Value::Array(messages) => messages.iter().filter_map(|text| Some(text.as_str()?.to_owned())).collect(),
            _ => Vec::new(),
        };
        let output = serde_json::to_value(Output { report, left_out, messages }).expect("a report is an object");
        if output.to_string().len() <= MAX_RESULT_BYTES || (limit == 1 && max_chars == MIN_TEXT_CHARS) {
            return output;
        }
        (limit, max_chars) = ((limit / 2).max(1), (max_chars / 2).max(MIN_TEXT_CHARS));
    }
}

/// Returns a copy of `value` with at most `limit` entries in each list and `max_chars` characters
/// in each text. Adds the number of removed entries to `left_out`, under the keys that lead to the
/// list. `path` has the keys that lead to `value`.
fn shortened(value: &Value, path: &str, limit: usize, max_chars: usize, left_out: &mut BTreeMap<String, u64>) -> Value {
    match value {
        Value::Array(entries) if is_tuple(entries) => value.clone(),
        Value::Array(entries) => {
            if entries.len() > limit {
                *left_out.entry(path.to_owned()).or_default() += (entries.len() - limit) as u64;
            }
            entries.iter().take(limit).map(|entry| shortened(entry, path, limit, max_chars, left_out)).collect()
        }
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                (key.clone(), shortened(value, &path, limit, max_chars, left_out))
            };
            Value::Object(fields.iter().map(field).collect())
        }
        Value::String(text) => Value::String(shortened_text(text, max_chars)),
        other => other.clone(),
    }
}

/// Returns true for a pair of numbers, such as a range of events, which is not shortened.
fn is_tuple(entries: &[Value]) -> bool {
    entries.len() == 2 && entries.iter().all(Value::is_number)
}

/// Returns a text of at most about `max_chars` characters. A shortened text ends with the number of
/// removed characters.
pub(super) fn shortened_text(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}… ({} more characters)", &text[..end], text[end..].chars().count()),
        None => text.to_owned(),
    }
}

/// Returns an error message of at most [`MAX_TEXT_CHARS`] characters.
pub(super) fn bounded_message(text: &str) -> String {
    shortened_text(text, MAX_TEXT_CHARS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_are_cut_off_and_counted() {
        let device = |rows: u64| json!({"rows": (0..rows).map(|row| [row, row]).collect::<Vec<_>>()});
        let report = json!({"devices": [device(5), device(2), device(4)], "name": "run"});
        let output = bounded(&report, 1, vec!["a note".to_owned()]);
        let shown = json!({"rows": [[0, 0]]});
        let left_out = json!([{"list": "devices", "entries": 2}, {"list": "devices.rows", "entries": 4}]);
        let expected = json!({
            "devices": [shown],
            "name": "run",
            "left_out": left_out,
            "messages": ["a note"],
        });
        assert_eq!(output, expected);
    }

    #[test]
    fn result_is_never_larger_than_its_limit() {
        let text = "x".repeat(1 << 20);
        let rows: Vec<Value> = (0..200).map(|_| json!({"a": text, "stack": vec![text.clone(); 9]})).collect();
        let output = bounded(&json!({"rows": rows, "name": text}), MAX_LIMIT, vec![text; 20]);
        assert!(output.to_string().len() <= MAX_RESULT_BYTES, "{} bytes", output.to_string().len());
        assert!(output["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{output}");
        let entries = output["left_out"][0]["entries"].as_u64().expect("a number");
        assert_eq!(entries + output["rows"].as_array().expect("a list").len() as u64, 200);
    }

    #[test]
    fn numbers_beyond_64_bits_do_not_fail() {
        #[derive(Serialize)]
        struct Report {
            bytes: i128,
        }
        assert_eq!(bounded(&Report { bytes: -5 }, 1, Vec::new())["bytes"], -5);
        assert!(bounded(&Report { bytes: i128::MAX }, 1, Vec::new())["bytes"].is_f64());
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!(shortened_text("äöü", 3), "äöü");
        assert_eq!(shortened_text("äöü", 1), "ä… (2 more characters)");
    }

    #[test]
    fn limits_outside_of_the_range_are_errors() {
        assert_eq!(checked_limit(1).expect("allowed"), 1);
        assert_eq!(checked_limit(MAX_LIMIT).expect("allowed"), MAX_LIMIT);
        for limit in [0, MAX_LIMIT + 1] {
            assert!(checked_limit(limit).expect_err("refused").to_string().contains("use 1 to 200"));
        }
    }
}
