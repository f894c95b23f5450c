//! Settings as text: what PyTorch's users put into an environment variable.
//!
//! ```text
//! conf  = [ item { "," item } [ "," ] ]
//! item  = key ":" value
//! value = word | "[" pair { "," pair } [ "," ] "]"        the list form, of roundup_power2_divisions only
//! pair  = ( size in MiB, a power of two | ">" ) ":" divisions
//! ```
//!
//! White space is ignored, also inside a word. A key that stands twice counts as it stands last. As in PyTorch 2.11, with two
//! differences, both of them refusals: a colon or comma that is missing, and text behind a number (`64MB`), are errors here.

use std::fmt;

use crate::settings::Settings;
use crate::size::MIN_OWN_SEGMENT_BYTES;

/// The environment variables that hold settings, in PyTorch's order: the first that is set counts, and the other is not looked at.
/// (Its documentation calls the second the newer one; its code asks for the first one first.) This crate reads neither.
pub const CONF_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

const MIB: u64 = 1 << 20;
/// What `large_segment_size_mb` must at least be: more than the requests that are served from such a segment.
const MIN_LARGE_SEGMENT_MIB: u64 = MIN_OWN_SEGMENT_BYTES / MIB + 1;
/// The longest piece of what was given that an error repeats, in characters.
const LONGEST_QUOTE: usize = 60;

/// What the value of a key is, and what it does.
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
    /// True or False, without effect on where blocks lie in this pool.
    IgnoredFlag,
    IgnoredThreads,
    IgnoredSize,
}

/// Every key, as PyTorch writes it. Those that are ignored are about memory of the host, about the lock that is held while the driver
/// is asked, and about a reuse of blocks inside one capture of a graph that this pool does not do.
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

/// Why a text is no settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfError {
    /// How many characters stand before what is wrong.
    pub position: usize,
    /// What is wrong there.
    pub kind: ConfErrorKind,
}

/// What is wrong with a text that should be settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfErrorKind {
    /// There is no such key.
    UnknownKey {
        /// The key as it was given, shortened where it is very long.
        key: String,
        /// The key that was likely meant.
        nearest: Option<&'static str>,
    },
    /// Something else has to stand there.
    Expected {
        /// What.
        expected: &'static str,
        /// What stands there, shortened where it is very long; `None` for the end of the text.
        found: Option<String>,
    },
    /// A value is not one of those that its key may have.
    OutOfRange {
        /// The key.
        key: &'static str,
        /// The value as it was given.
        value: String,
        /// Which there may be.
        allowed: String,
    },
    /// Another allocator than this one is asked for.
    OtherBackend {
        /// Its name.
        backend: String,
    },
}

impl fmt::Display for ConfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ConfErrorKind::UnknownKey { key, .. } => write!(f, "there is no setting {key:?}")?,
            ConfErrorKind::Expected { expected, found: Some(found) } => {
                write!(f, "{found:?} stands where {expected} must")?
            }
            ConfErrorKind::Expected { expected, found: None } => {
                write!(f, "the settings end where {expected} must stand")?
            }
            ConfErrorKind::OutOfRange { key, value, allowed } => write!(f, "{key} is {value} and must be {allowed}")?,
            ConfErrorKind::OtherBackend { backend } => {
                write!(f, "the backend {backend} leaves blocks to the driver; this is the native allocator")?;
            }
        }
        write!(f, " (character {})", self.position + 1)?;
        match self.kind {
            ConfErrorKind::UnknownKey { nearest: Some(nearest), .. } => write!(f, "; the nearest there is: {nearest}"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ConfError {}

/// A word, or one of `, : [ ]`.
#[derive(Debug)]
struct Token {
    text: String,
    position: usize,
}

impl Token {
    fn quote(&self) -> String {
        match self.text.char_indices().nth(LONGEST_QUOTE) {
            Some((cut, _)) => format!("{}…", &self.text[..cut]),
            None => self.text.clone(),
        }
    }

    fn error(&self, kind: ConfErrorKind) -> ConfError {
        ConfError { position: self.position, kind }
    }

    fn expected(&self, expected: &'static str) -> ConfError {
        self.error(ConfErrorKind::Expected { expected, found: Some(self.quote()) })
    }

    fn out_of_range(&self, key: &'static str, allowed: impl Into<String>) -> ConfError {
        self.error(ConfErrorKind::OutOfRange { key, value: self.quote(), allowed: allowed.into() })
    }

    fn whole_number(&self) -> Result<u64, ConfError> {
        self.text.parse().map_err(|_| self.expected("a whole number"))
    }

    /// A size in MiB, in bytes; what no address space holds is cut to the largest that can be said.
    fn mib(&self, key: &'static str, at_least_mib: u64) -> Result<u64, ConfError> {
        match self.whole_number()? {
            mib if mib < at_least_mib => Err(self.out_of_range(key, format!("at least {at_least_mib}"))),
            mib => Ok(mib.min(u64::MAX / MIB) * MIB),
        }
    }

    fn number(&self, key: &'static str, allowed: &str, is_allowed: impl FnOnce(f64) -> bool) -> Result<f64, ConfError> {
        let number: f64 = self.text.parse().map_err(|_| self.expected("a number"))?;
        if is_allowed(number) { Ok(number) } else { Err(self.out_of_range(key, allowed)) }
    }

    fn flag(&self) -> Result<bool, ConfError> {
        match self.text.as_str() {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(self.expected("True or False")),
        }
    }
}

/// The text, token by token.
struct Tokens<'a> {
    text: &'a str,
    /// Characters before the rest.
    position: usize,
    rest: std::iter::Peekable<std::str::Chars<'a>>,
}

impl<'a> Tokens<'a> {
    fn of(text: &'a str) -> Self {
        Self { text, position: 0, rest: text.chars().peekable() }
    }

    fn next_char_if(&mut self, accepts: impl FnOnce(char) -> bool) -> Option<char> {
        let char = self.rest.next_if(|&char| accepts(char))?;
        self.position += 1;
        Some(char)
    }

    fn next(&mut self) -> Option<Token> {
        let is_space = |char: char| matches!(char, ' ' | '\t'..='\r');
        let is_mark = |char| matches!(char, ',' | ':' | '[' | ']');
        while self.next_char_if(is_space).is_some() {}
        let position = self.position;
        if let Some(mark) = self.next_char_if(is_mark) {
            return Some(Token { text: mark.into(), position });
        }
        let mut text = String::new();
        while let Some(char) = self.next_char_if(|char| !is_mark(char)) {
            if !is_space(char) {
                text.push(char);
            }
        }
        (!text.is_empty()).then_some(Token { text, position })
    }

    /// The next token, where the text must not end.
    fn must(&mut self, expected: &'static str) -> Result<Token, ConfError> {
        let end = || ConfError {
            position: self.text.chars().count(),
            kind: ConfErrorKind::Expected { expected, found: None },
        };
        self.next().ok_or_else(end)
    }

    fn colon(&mut self) -> Result<(), ConfError> {
        let token = self.must("a colon")?;
        if token.text == ":" { Ok(()) } else { Err(token.expected("a colon")) }
    }
}

impl Settings {
    /// Settings from the text of `PYTORCH_CUDA_ALLOC_CONF` or `PYTORCH_ALLOC_CONF`; what it does not name is as by default. An empty
    /// text is the default.
    ///
    /// Accepted, checked and without effect are: `backend:native`, `release_lock_on_cudamalloc`, `graph_capture_record_stream_reuse`
    /// and, as they are about memory of the host, all keys that begin with `pinned_`. A `max_split_size_mb` or
    /// `max_non_split_rounding_mb` must not be below the large segment size, wherever in the text that stands.
    ///
    /// # Errors
    /// Where a key is unknown, a value cannot be what its key asks for, or something stands out of place.
    pub fn parse(conf: &str) -> Result<Self, ConfError> {
        let mut settings = Self::default();
        let mut tokens = Tokens::of(conf);
        // PyTorch reads the large segment size first, wherever it stands.
        let mut held_against_it = Vec::new();
        while let Some(key) = tokens.next() {
            let &(name, rule) = KEYS.iter().find(|(name, _)| *name == key.text).ok_or_else(|| unknown_key(&key))?;
            tokens.colon()?;
            let value = tokens.must("a value")?;
            match rule {
                Key::MaxSplitSize | Key::MaxNonSplitRounding => held_against_it.push((name, rule, value)),
                _ => settings.set(name, rule, &value, &mut tokens)?,
            }
            match tokens.next() {
                Some(comma) if comma.text != "," => return Err(comma.expected("a comma")),
                _ => {}
            }
        }
        for (name, rule, value) in held_against_it {
            settings.set(name, rule, &value, &mut tokens)?;
        }
        // As much as it is without being set is not set.
        settings.max_non_split_rounding.take_if(|rounding| *rounding == settings.large_segment_size);
        Ok(settings)
    }

    fn set(&mut self, key: &'static str, rule: Key, value: &Token, tokens: &mut Tokens<'_>) -> Result<(), ConfError> {
        let large_segment_mib = self.large_segment_size / MIB;
        match rule {
            Key::MaxSplitSize => self.max_split_size = Some(value.mib(key, large_segment_mib)?),
            Key::MaxNonSplitRounding => self.max_non_split_rounding = Some(value.mib(key, large_segment_mib)?),
            Key::LargeSegmentSize => self.large_segment_size = value.mib(key, MIN_LARGE_SEGMENT_MIB)?,
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
            Key::IgnoredSize => drop(value.mib(key, 1)?),
        }
        Ok(())
    }

    /// A short text that [`parse`](Self::parse) makes the same settings of; what is as by default is left out. `limit_bytes` is no
    /// part of it. Sizes are in whole MiB there. Of settings that [`parse`](Self::parse) would refuse it is a text that it refuses.
    #[must_use]
    pub fn to_conf(&self) -> String {
        let default = Self::default();
        let is_set = self.large_segment_size != default.large_segment_size;
        let sizes = [
            ("large_segment_size_mb", is_set.then_some(self.large_segment_size)),
            ("max_split_size_mb", self.max_split_size),
            ("max_non_split_rounding_mb", self.max_non_split_rounding),
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

/// Reads what stands behind the opening bracket. The first pair holds for all smaller sizes too, any other for its own size alone,
/// and `>` for all sizes above that of the pair before it.
fn parse_division_list(key: &'static str, table: &mut [u64; 16], tokens: &mut Tokens<'_>) -> Result<(), ConfError> {
    let mut last_place = None;
    loop {
        let size = tokens.must("a size in MiB, > or a closing bracket")?;
        if size.text == "]" {
            return Ok(());
        }
        tokens.colon()?;
        let value = tokens.must("a number of divisions")?;
        let divisions = value.whole_number()?;
        if divisions != 0 && !divisions.is_power_of_two() {
            return Err(value.out_of_range(key, "0 or a power of two for each size"));
        }
        if size.text == ">" {
            table[last_place.unwrap_or(0) + 1..].fill(divisions);
        } else {
            let mib = size.whole_number()?;
            if !mib.is_power_of_two() {
                return Err(size.out_of_range(key, "a list whose sizes are powers of two"));
            }
            let place = (mib.ilog2() as usize).min(table.len() - 1);
            let first = if last_place.is_none() { 0 } else { place };
            table[first..=place].fill(divisions);
            last_place = Some(place);
        }
        let separator = tokens.must("a comma or a closing bracket")?;
        match separator.text.as_str() {
            "," => {}
            "]" => return Ok(()),
            _ => return Err(separator.expected("a comma or a closing bracket")),
        }
    }
}

/// One number, or the list form with what it leaves at 0 left out.
fn divisions_to_conf(table: &[u64; 16]) -> String {
    let [first, .., last] = *table;
    let at_start = table.iter().take_while(|&&divisions| divisions == first).count();
    if at_start == table.len() {
        return first.to_string();
    }
    let at_end = table.iter().rev().take_while(|&&divisions| divisions == last).count();
    let rest = table.len() - at_end;
    let mut pairs = vec![format!("{}:{first}", 1u64 << (at_start - 1))];
    for (place, &divisions) in table.iter().enumerate().take(rest).skip(at_start) {
        // `>` begins behind the pair before it.
        if divisions != 0 || (last != 0 && place + 1 == rest) {
            pairs.push(format!("{}:{divisions}", 1u64 << place));
        }
    }
    if last != 0 {
        pairs.push(format!(">:{last}"));
    }
    format!("[{}]", pairs.join(","))
}

/// The error for a key that there is not, with the nearest that there is where at most a third of it is otherwise.
fn unknown_key(key: &Token) -> ConfError {
    let quote = key.quote();
    let distances = KEYS.iter().map(|&(name, _)| (edit_distance(name, &quote), name));
    let nearest = distances.min().filter(|(distance, name)| 3 * distance <= name.len()).map(|(_, name)| name);
    key.error(ConfErrorKind::UnknownKey { key: quote, nearest })
}

/// How many characters have to be put in, taken out or changed to make one text of the other.
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
