//! Settings as text, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! ```text
//! conf  = [ item { "," item } [ "," ] ]
//! item  = key ":" value
//! value = word | "[" pair { "," pair } [ "," ] "]"        lists only for roundup_power2_divisions
//! pair  = ( size in MiB, a power of two | ">" ) ":" divisions
//! ```
//!
//! White space is ignored, even inside a word. If a key is repeated, its last value applies. This
//! follows PyTorch 2.11 except that a missing colon or comma and text after a number (`64MB`) are
//! errors.

use crate::settings::Settings;
use crate::size::MIN_DEDICATED_SEGMENT_BYTES;

/// The environment variables that hold the allocator's settings. As in PyTorch, the first that is
/// set applies and the other is ignored. (PyTorch's documentation calls the second the newer one,
/// but its code reads the first one first.)
///
/// This crate does not read the environment.
pub const CONF_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// The number of bytes in a MiB.
const MIB: u64 = 1 << 20;
/// The smallest valid `large_segment_size_mb`, in MiB: these segments serve requests below 10 MiB
/// and must be larger than that.
const MIN_LARGE_SEGMENT_MIB: u64 = MIN_DEDICATED_SEGMENT_BYTES / MIB + 1;
/// The longest piece of the settings' text that an error quotes, in characters. Longer pieces are
/// cut and end in `…`.
const MAX_QUOTE_CHARS: usize = 60;

/// The setting that a key of `PYTORCH_CUDA_ALLOC_CONF` stands for. It determines which values are
/// valid; values of ignored keys are checked and have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    MaxSplitSize,
    MaxNonSplitRounding,
    LargeSegmentSize,
    GarbageCollectionThreshold,
    Divisions,
    ExpandableSegments,
    PerProcessMemoryFraction,
    Backend,
    /// True or False, with no effect on this pool's decisions.
    IgnoredFlag,
    IgnoredThreads,
    IgnoredSize,
}

/// Every key of `PYTORCH_CUDA_ALLOC_CONF` that PyTorch accepts, with its setting. The ignored keys
/// concern pinned host memory, the lock that is held during driver calls, and a reuse of blocks
/// within a graph capture that this pool does not implement.
const KEYS: [(&str, Key); 16] = [
    ("max_split_size_mb", Key::MaxSplitSize),
    ("max_non_split_rounding_mb", Key::MaxNonSplitRounding),
    ("large_segment_size_mb", Key::LargeSegmentSize),
    ("garbage_collection_threshold", Key::GarbageCollectionThreshold),
    ("roundup_power2_divisions", Key::Divisions),
    ("expandable_segments", Key::ExpandableSegments),
    ("per_process_memory_fraction", Key::PerProcessMemoryFraction),
    ("backend", Key::Backend),
    ("release_lock_on_cudamalloc", Key::IgnoredFlag),
    ("release_lock_on_hipmalloc", Key::IgnoredFlag),
    ("pinned_use_cuda_host_register", Key::IgnoredFlag),
    ("pinned_use_hip_host_register", Key::IgnoredFlag),
    ("pinned_use_background_threads", Key::IgnoredFlag),
    ("graph_capture_record_stream_reuse", Key::IgnoredFlag),
    ("pinned_num_register_threads", Key::IgnoredThreads),
    ("pinned_reserve_segment_size_mb", Key::IgnoredSize),
];

/// The error of [`Settings::parse`] for invalid settings: its position in the text and its kind.
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
        /// What the syntax requires.
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
    #[error("the backend {backend} is not supported; use native")]
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

/// A word of the settings' text, or one of `, : [ ]`, with its position.
#[derive(Debug)]
struct Token {
    text: String,
    position: usize,
}

impl Token {
    /// Returns the token's text for an error message, cut to [`MAX_QUOTE_CHARS`] characters and
    /// `…`.
    fn quote(&self) -> String {
        match self.text.char_indices().nth(MAX_QUOTE_CHARS) {
            Some((cut, _)) => format!("{}…", &self.text[..cut]),
            None => self.text.clone(),
        }
    }

    /// Returns an error of this kind at the token's position.
    fn error(&self, kind: ConfErrorKind) -> ConfError {
        ConfError { position: self.position, kind }
    }

    /// Returns the syntax error for this token; `expected` describes what the syntax requires
    /// instead.
    fn expected(&self, expected: &'static str) -> ConfError {
        self.error(ConfErrorKind::Expected { expected, found: Some(self.quote()) })
    }

    /// Returns the error that this token is not a valid value of the setting `key`; `allowed`
    /// describes the valid values.
    fn out_of_range(&self, key: &'static str, allowed: impl Into<String>) -> ConfError {
        self.error(ConfErrorKind::OutOfRange { key, value: self.quote(), allowed: allowed.into() })
    }

    /// Parses the token as a whole number from 0 on; any other text is an error.
    fn whole_number(&self) -> Result<u64, ConfError> {
        self.text.parse().map_err(|_| self.expected("a whole number"))
    }

    /// Parses the token as a size in MiB, the value of the setting `key`, and returns it in bytes.
    /// A size below `min_mib` is an error. A size whose bytes do not fit in 64 bits becomes the
    /// largest whole number of MiB that does.
    fn bytes_from_mib(&self, key: &'static str, min_mib: u64) -> Result<u64, ConfError> {
        let mib: u64 = self.text.parse().map_err(|_| self.expected("a whole number of MiB"))?;
        match mib {
            mib if mib < min_mib => Err(self.out_of_range(key, format!("at least {min_mib}"))),
            mib => Ok(mib.min(u64::MAX / MIB) * MIB),
        }
    }

    /// Parses the token as a number, the value of the setting `key`. It is an error if `is_allowed`
    /// returns false; `allowed` describes the valid numbers for the message.
    fn number(&self, key: &'static str, allowed: &str, is_allowed: impl FnOnce(f64) -> bool) -> Result<f64, ConfError> {
        let number: f64 = self.text.parse().map_err(|_| self.expected("a number"))?;
        if is_allowed(number) { Ok(number) } else { Err(self.out_of_range(key, allowed)) }
    }

    /// Parses the token as `True` or `False`; any other text or spelling is an error.
    fn flag(&self) -> Result<bool, ConfError> {
        match self.text.as_str() {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(self.expected("True or False")),
        }
    }
}

/// An iterator over the tokens of the settings' text.
struct Tokens<'a> {
    text: &'a str,
    /// The number of characters consumed.
    position: usize,
    rest: std::iter::Peekable<std::str::Chars<'a>>,
}

impl<'a> Tokens<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, position: 0, rest: text.chars().peekable() }
    }

    /// Removes and returns the next character of the text if `accepts` returns true for it.
    /// Otherwise, and at the end of the text, removes nothing and returns `None`.
    fn next_char_if(&mut self, accepts: impl FnOnce(char) -> bool) -> Option<char> {
        let char = self.rest.next_if(|&char| accepts(char))?;
        self.position += 1;
        Some(char)
    }

    /// Removes and returns the next token; `None` at the end of the text. White space is skipped,
    /// even within a word.
    fn next(&mut self) -> Option<Token> {
        let is_space = |char: char| matches!(char, ' ' | '\t'..='\r');
        let is_separator = |char| matches!(char, ',' | ':' | '[' | ']');
        while self.next_char_if(is_space).is_some() {}
        let position = self.position;
        if let Some(separator) = self.next_char_if(is_separator) {
            return Some(Token { text: separator.into(), position });
        }
        let mut text = String::new();
        while let Some(char) = self.next_char_if(|char| !is_separator(char)) {
            if !is_space(char) {
                text.push(char);
            }
        }
        (!text.is_empty()).then_some(Token { text, position })
    }

    /// Removes and returns the next token. The end of the text is an error; `expected` describes
    /// what is missing.
    fn expect(&mut self, expected: &'static str) -> Result<Token, ConfError> {
        let end = || ConfError {
            position: self.text.chars().count(),
            kind: ConfErrorKind::Expected { expected, found: None },
        };
        self.next().ok_or_else(end)
    }

    /// Removes the next token; it is an error if that is not a colon.
    fn expect_colon(&mut self) -> Result<(), ConfError> {
        let token = self.expect("a colon")?;
        if token.text == ":" { Ok(()) } else { Err(token.expected("a colon")) }
    }
}

impl Settings {
    /// Parses settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`. Settings that `conf` does not
    /// name have their defaults.
    ///
    /// `backend:native`, `release_lock_on_cudamalloc`, `graph_capture_record_stream_reuse` and all
    /// keys that begin with `pinned_` are checked and ignored: they do not affect device memory.
    /// `max_split_size_mb` and `max_non_split_rounding_mb` must not be below
    /// `large_segment_size_mb`, in whatever order they are given.
    ///
    /// ```
    /// use vramscope_pool::Settings;
    ///
    /// let settings = Settings::parse("expandable_segments:True,max_split_size_mb:64")?;
    /// assert!(settings.expandable_segments);
    /// assert_eq!(settings.max_split_size_bytes, Some(64 << 20));
    ///
    /// let error = Settings::parse("max_split_size:64").unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "character 1: unknown setting \"max_split_size\"; did you mean max_split_size_mb?"
    /// );
    /// # Ok::<(), vramscope_pool::ConfError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfError`] with the position and kind of the first error.
    pub fn parse(conf: &str) -> Result<Self, ConfError> {
        let mut settings = Self::default();
        let mut tokens = Tokens::new(conf);
        // As in PyTorch, `large_segment_size_mb` is applied first, wherever it is in the text.
        let mut after_large_segment_size = Vec::new();
        while let Some(key) = tokens.next() {
            let &(name, rule) = KEYS.iter().find(|(name, _)| *name == key.text).ok_or_else(|| unknown_key(&key))?;
            tokens.expect_colon()?;
            let value = tokens.expect("a value")?;
            match rule {
                Key::MaxSplitSize | Key::MaxNonSplitRounding => after_large_segment_size.push((name, rule, value)),
                _ => settings.set(name, rule, &value, &mut tokens)?,
            }
            match tokens.next() {
                Some(comma) if comma.text != "," => return Err(comma.expected("a comma")),
                _ => {}
            }
        }
        for (name, rule, value) in after_large_segment_size {
            settings.set(name, rule, &value, &mut tokens)?;
        }
        // The default value counts as not set.
        settings.max_non_split_rounding_bytes.take_if(|rounding| *rounding == settings.large_segment_size_bytes);
        Ok(settings)
    }

    /// Parses `value` and stores it in the setting `rule`; `key` is that setting's name, for
    /// errors. If the value is a list, `value` is its opening bracket and the rest comes from
    /// `tokens`.
    fn set(&mut self, key: &'static str, rule: Key, value: &Token, tokens: &mut Tokens<'_>) -> Result<(), ConfError> {
        let large_segment_mib = self.large_segment_size_bytes / MIB;
        match rule {
            Key::MaxSplitSize => self.max_split_size_bytes = Some(value.bytes_from_mib(key, large_segment_mib)?),
            Key::MaxNonSplitRounding => {
                self.max_non_split_rounding_bytes = Some(value.bytes_from_mib(key, large_segment_mib)?)
            }
            Key::LargeSegmentSize => {
                self.large_segment_size_bytes = value.bytes_from_mib(key, MIN_LARGE_SEGMENT_MIB)?
            }
            Key::GarbageCollectionThreshold => {
                self.garbage_collection_threshold =
                    value.number(key, "above 0 and below 1", |threshold| threshold > 0.0 && threshold < 1.0)?;
            }
            Key::Divisions if value.text == "[" => {
                parse_division_list(key, &mut self.roundup_power2_divisions, tokens)?
            }
            Key::Divisions => match value.whole_number()? {
                divisions if divisions.is_power_of_two() => self.roundup_power2_divisions = [divisions; 16],
                _ => return Err(value.out_of_range(key, "a power of two")),
            },
            Key::ExpandableSegments => self.expandable_segments = value.flag()?,
            Key::PerProcessMemoryFraction => {
                self.per_process_memory_fraction =
                    value.number(key, "from 0 to 1", |fraction| (0.0..=1.0).contains(&fraction))?;
            }
            Key::Backend => match value.text.as_str() {
                "native" => {}
                "cudaMallocAsync" | "hipMallocAsync" => {
                    return Err(value.error(ConfErrorKind::OtherBackend { backend: value.text.clone() }));
                }
                _ => return Err(value.expected("native")),
            },
            Key::IgnoredFlag => drop(value.flag()?),
            Key::IgnoredThreads => match value.whole_number()? {
                threads if threads.is_power_of_two() && threads <= 128 => {}
                _ => return Err(value.out_of_range(key, "a power of two up to 128")),
            },
            Key::IgnoredSize => drop(value.bytes_from_mib(key, 1)?),
        }
        Ok(())
    }

    /// Returns the shortest text that [`parse`](Self::parse) reads as the same settings. Defaults
    /// are omitted, sizes are in whole MiB, and `limit_bytes` is not included.
    ///
    /// For settings that no text can express, the result is a text that [`parse`](Self::parse)
    /// refuses.
    #[must_use]
    pub fn to_conf(&self) -> String {
        let default = Self::default();
        let is_set = self.large_segment_size_bytes != default.large_segment_size_bytes;
        let sizes = [
            ("large_segment_size_mb", is_set.then_some(self.large_segment_size_bytes)),
            ("max_split_size_mb", self.max_split_size_bytes),
            ("max_non_split_rounding_mb", self.max_non_split_rounding_bytes),
        ];
        let written = |(key, size): (&str, Option<u64>)| size.map(|size| format!("{key}:{}", size / MIB));
        let mut items: Vec<_> = sizes.into_iter().filter_map(written).collect();
        if self.garbage_collection_threshold != default.garbage_collection_threshold {
            items.push(format!("garbage_collection_threshold:{:?}", self.garbage_collection_threshold));
        }
        if self.roundup_power2_divisions != default.roundup_power2_divisions {
            items.push(format!("roundup_power2_divisions:{}", divisions_to_conf(&self.roundup_power2_divisions)));
        }
        if self.expandable_segments {
            items.push("expandable_segments:True".to_owned());
        }
        if self.per_process_memory_fraction != default.per_process_memory_fraction {
            items.push(format!("per_process_memory_fraction:{:?}", self.per_process_memory_fraction));
        }
        items.join(",")
    }
}

/// Parses a list of pairs `size in MiB:divisions`, the value of `key` after its opening bracket,
/// into `table`: the number of rounding steps up to the next power of two, for each power of two
/// from 1 MiB on. The first pair also applies to all smaller sizes, any other pair only to its own
/// size, and a pair with `>` as its size to all sizes above that of the pair before it.
fn parse_division_list(key: &'static str, table: &mut [u64; 16], tokens: &mut Tokens<'_>) -> Result<(), ConfError> {
    let mut last_row = None;
    loop {
        let size = tokens.expect("a size in MiB, > or a closing bracket")?;
        if size.text == "]" {
            return Ok(());
        }
        tokens.expect_colon()?;
        let value = tokens.expect("a number of divisions")?;
        let divisions = value.whole_number()?;
        if divisions != 0 && !divisions.is_power_of_two() {
            return Err(value.out_of_range(key, "0 or a power of two for each size"));
        }
        if size.text == ">" {
            table[last_row.unwrap_or(0) + 1..].fill(divisions);
        } else {
            let mib = size.whole_number()?;
            if !mib.is_power_of_two() {
                return Err(size.out_of_range(key, "a list whose sizes are powers of two"));
            }
            let row = (mib.ilog2() as usize).min(table.len() - 1);
            let first = if last_row.is_none() { 0 } else { row };
            table[first..=row].fill(divisions);
            last_row = Some(row);
        }
        let separator = tokens.expect("a comma or a closing bracket")?;
        match separator.text.as_str() {
            "," => {}
            "]" => return Ok(()),
            _ => return Err(separator.expected("a comma or a closing bracket")),
        }
    }
}

/// Returns the value of `roundup_power2_divisions` as text: one number if all in `table` are equal,
/// else a list of pairs. `table` has the number of rounding steps up to the next power of two, for
/// each power of two from 1 MiB on.
fn divisions_to_conf(table: &[u64; 16]) -> String {
    let [first, .., last] = *table;
    let leading = table.iter().take_while(|&&divisions| divisions == first).count();
    if leading == table.len() {
        return first.to_string();
    }
    let trailing = table.iter().rev().take_while(|&&divisions| divisions == last).count();
    let rest = table.len() - trailing;
    let mut pairs = vec![format!("{}:{first}", 1u64 << (leading - 1))];
    for (row, &divisions) in table.iter().enumerate().take(rest).skip(leading) {
        // `>` applies from the pair before it, so that pair must be present.
        if divisions != 0 || (last != 0 && row + 1 == rest) {
            pairs.push(format!("{}:{divisions}", 1u64 << row));
        }
    }
    if last != 0 {
        pairs.push(format!(">:{last}"));
    }
    format!("[{}]", pairs.join(","))
}

/// Returns the error for a key that does not exist. It suggests the most similar existing key if at
/// most a third of the characters differ, otherwise none.
fn unknown_key(key: &Token) -> ConfError {
    let quote = key.quote();
    let distances = KEYS.iter().map(|&(name, _)| (edit_distance(name, &quote), name));
    let nearest = distances.min().filter(|(distance, name)| 3 * distance <= name.len()).map(|(_, name)| name);
    key.error(ConfErrorKind::UnknownKey { key: quote, nearest })
}

/// Returns the Levenshtein distance of two texts, in characters.
fn edit_distance(of: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (above, from) in of.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, char) in to.chars().enumerate() {
            let changed = diagonal + usize::from(from != char);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[row.len() - 1]
}
