//! The errors of settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.

/// The error of [`Settings::parse`](crate::Settings::parse) for invalid settings: its position in
/// the text and its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("character {}: {kind}", .position + 1)]
pub struct ConfError {
    /// The position of the error, as the number of characters before it.
    pub position: usize,
    /// The kind of error.
    pub kind: ConfErrorKind,
}

/// The kind of a [`ConfError`]: an unknown key, wrong syntax, a value out of range, or an allocator
/// that this crate does not implement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfErrorKind {
    /// The key does not exist.
    #[error("unknown setting {key:?}{}", .nearest.map(|key| format!("; did you mean {key}?")).unwrap_or_default())]
    UnknownKey {
        /// The key, truncated if it is very long.
        key: String,
        /// The most similar existing key, if one is similar.
        nearest: Option<&'static str>,
    },
    /// The text does not continue as the syntax requires.
    #[error("expected {expected}, found {}", describe_found(.found.as_deref()))]
    Expected {
        /// The syntax that the position requires.
        expected: &'static str,
        /// The text found instead, truncated if it is very long; `None` at the end of the text.
        found: Option<String>,
    },
    /// The value is outside of its key's range.
    #[error("{key} must be {allowed}, not {value}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The value as written.
        value: String,
        /// The permitted values.
        allowed: String,
    },
    /// The settings select another allocator, which this crate does not implement.
    #[error("the pool does not implement the backend {backend}, only native")]
    OtherBackend {
        /// The allocator's name.
        backend: String,
    },
}

/// Returns the text that was found where the syntax requires something else, in quotes, for an
/// error message. `None` gives "the end of the text".
fn describe_found(found: Option<&str>) -> String {
    found.map_or_else(|| "the end of the text".to_owned(), |text| format!("{text:?}"))
}
