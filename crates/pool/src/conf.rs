//! Settings as text, in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! ```text
//! conf  = [ item { "," item } [ "," ] ]
//! item  = key ":" value
//! value = word | "[" pair { "," pair } [ "," ] "]"
//! pair  = ( size in MiB, a power of two | ">" ) ":" divisions        of roundup_power2_divisions
//!       | class of streams ":" reserve           of expandable_segments_reserve_by_class
//! ```
//!
//! White space is ignored, even inside a word. If a key is repeated, its last value applies. This
//! follows PyTorch 2.15 (`AcceleratorAllocatorConfig::parseArgs` and
//! `CUDAAllocatorConfig::parseArgs`) except that a missing colon or comma, text after a number
//! (`64MB`) and an invalid reserve are errors.

use crate::conf_error::{ConfError, ConfErrorKind};
use crate::conf_token::{MIB, Token, Tokens};
use crate::settings::Settings;
use crate::size::MIN_DEDICATED_SEGMENT_BYTES;

/// The environment variables that hold the allocator's settings. As in PyTorch, the first that is
/// set applies and the other is ignored. (PyTorch's documentation calls the second the newer one,
/// but its code reads the first one first.)
///
/// This crate does not read the environment.
pub const CONF_VARIABLES: [&str; 2] = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

/// The smallest valid `large_segment_size_mb`, in MiB: these segments serve requests below 10 MiB
/// and must be larger than that.
const MIN_LARGE_SEGMENT_MIB: u64 = MIN_DEDICATED_SEGMENT_BYTES / MIB + 1;

/// The setting that a key of `PYTORCH_CUDA_ALLOC_CONF` stands for. It determines which values are
/// valid; values of ignored keys are checked and have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConfKey {
    MaxSplitSize,
    MaxNonSplitRounding,
    LargeSegmentSize,
    GarbageCollectionThreshold,
    Divisions,
    ExpandableSegments,
    PerProcessMemoryFraction,
    Backend,
    IgnoredFlag,
    IgnoredThreads,
    IgnoredSize {
        min_mib: u64,
    },
    /// True or False. True changes decisions of PyTorch that this pool does not follow.
    UnfollowedFlag,
    /// Address space of an expandable segment, which this pool does not limit.
    SegmentReserve,
    /// Address space of an expandable segment for each class of streams, which has no limit either.
    SegmentReserveByClass,
}

/// Every key of `PYTORCH_CUDA_ALLOC_CONF` that PyTorch 2.6 to 2.15 accept, with its setting.
///
/// The ignored keys concern pinned host memory and the lock that is held during driver calls. Three
/// keys have an effect that this pool does not have: `graph_capture_record_stream_reuse` reuses
/// blocks within a graph capture, `throw_on_cudamalloc_oom` rejects some requests before cached
/// segments are released for them, and the reserves bound an expandable segment.
const KEYS: [(&str, ConfKey); 22] = [
    ("max_split_size_mb", ConfKey::MaxSplitSize),
    ("max_non_split_rounding_mb", ConfKey::MaxNonSplitRounding),
    ("large_segment_size_mb", ConfKey::LargeSegmentSize),
    ("garbage_collection_threshold", ConfKey::GarbageCollectionThreshold),
    ("roundup_power2_divisions", ConfKey::Divisions),
    ("expandable_segments", ConfKey::ExpandableSegments),
    ("per_process_memory_fraction", ConfKey::PerProcessMemoryFraction),
    ("backend", ConfKey::Backend),
    ("release_lock_on_cudamalloc", ConfKey::IgnoredFlag),
    ("release_lock_on_hipmalloc", ConfKey::IgnoredFlag),
    ("pinned_use_cuda_host_register", ConfKey::IgnoredFlag),
    ("pinned_use_hip_host_register", ConfKey::IgnoredFlag),
    ("pinned_use_background_threads", ConfKey::IgnoredFlag),
    ("pinned_free_catch_all", ConfKey::IgnoredFlag),
    ("pinned_num_register_threads", ConfKey::IgnoredThreads),
    ("pinned_reserve_segment_size_mb", ConfKey::IgnoredSize { min_mib: 1 }),
    ("pinned_max_round_threshold_mb", ConfKey::IgnoredSize { min_mib: 0 }),
    ("pinned_max_cached_size_mb", ConfKey::IgnoredSize { min_mib: 0 }),
    ("graph_capture_record_stream_reuse", ConfKey::UnfollowedFlag),
    ("throw_on_cudamalloc_oom", ConfKey::UnfollowedFlag),
    ("expandable_segments_reserve", ConfKey::SegmentReserve),
    ("expandable_segments_reserve_by_class", ConfKey::SegmentReserveByClass),
];

impl Settings {
    /// Parses settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`. Settings that `conf` does not
    /// name have their defaults.
    ///
    /// `backend:native`, `release_lock_on_cudamalloc` and all keys that begin with `pinned_` are
    /// checked and ignored: they do not affect device memory. So are
    /// `graph_capture_record_stream_reuse`, `throw_on_cudamalloc_oom`,
    /// `expandable_segments_reserve` and `expandable_segments_reserve_by_class`, whose effect this
    /// pool does not have; [`RecordedConf`](crate::RecordedConf) names them. `max_split_size_mb`
    /// and `max_non_split_rounding_mb` must not be below `large_segment_size_mb`, in any order.
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
        Ok(ParsedConf::parse(conf, |error| Err(with_nearest_key(error)))?.settings)
    }

    /// Returns the shortest text that [`parse`](Self::parse) reads as these settings. Defaults are
    /// omitted, sizes are in whole MiB, and `limit_bytes` is not included.
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

/// The settings in a text, and the enabled settings that the pool does not follow.
#[derive(Clone, Debug, Default)]
pub(crate) struct ParsedConf {
    pub(crate) settings: Settings,
    /// For each key of [`KEYS`]: true if its setting is on and the pool does not follow it.
    is_unfollowed: [bool; KEYS.len()],
}

/// A setting whose value is parsed after `large_segment_size_mb`: the index of its key in [`KEYS`],
/// and its value.
type DeferredSetting = (usize, Token);

impl ParsedConf {
    /// Parses settings. `skip` receives the error of each invalid item and returns it to fail, or
    /// `Ok` to leave the item without effect. The errors of unknown keys name no similar key;
    /// [`with_nearest_key`] adds it.
    pub(crate) fn parse(
        conf: &str,
        mut skip: impl FnMut(ConfError) -> Result<(), ConfError>,
    ) -> Result<Self, ConfError> {
        let mut parsed = Self::default();
        let mut tokens = Tokens::new(conf);
        // As in PyTorch, `large_segment_size_mb` is applied first, wherever it is in the text.
        let mut after_large_segment_size = Vec::new();
        loop {
            let (item, before, deferred) = (tokens.clone(), parsed.clone(), after_large_segment_size.len());
            match parsed.parse_item(&mut tokens, &mut after_large_segment_size) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    skip(error)?;
                    (tokens, parsed) = (item, before);
                    after_large_segment_size.truncate(deferred);
                    tokens.skip_item();
                }
            }
        }
        for (index, value) in after_large_segment_size {
            parsed.set(index, &value, &mut tokens).or_else(&mut skip)?;
        }
        let settings = &mut parsed.settings;
        // The default value counts as not set.
        settings.max_non_split_rounding_bytes.take_if(|rounding| *rounding == settings.large_segment_size_bytes);
        Ok(parsed)
    }

    /// Returns the keys of the settings that are on and whose effect the pool does not have.
    pub(crate) fn unfollowed(&self) -> impl Iterator<Item = &'static str> {
        KEYS.into_iter().zip(self.is_unfollowed).filter(|&(_, is_on)| is_on).map(|((key, _), _)| key)
    }

    /// Parses the next item with the comma after it; returns false at the end of the text. A value
    /// that depends on `large_segment_size_mb` is appended to `deferred`.
    fn parse_item(&mut self, tokens: &mut Tokens<'_>, deferred: &mut Vec<DeferredSetting>) -> Result<bool, ConfError> {
        let Some(key) = tokens.next() else { return Ok(false) };
        let index = KEYS.iter().position(|(name, _)| *name == key.text).ok_or_else(|| unknown_key(&key))?;
        tokens.expect_colon()?;
        let value = tokens.expect("a value")?;
        match KEYS[index].1 {
            ConfKey::MaxSplitSize | ConfKey::MaxNonSplitRounding => deferred.push((index, value)),
            _ => self.set(index, &value, tokens)?,
        }
        match tokens.next() {
            Some(comma) if comma.text != "," => Err(comma.expected("a comma")),
            _ => Ok(true),
        }
    }

    /// Parses `value` and stores it in the setting at `index` of [`KEYS`]. If the value is a list,
    /// `value` is its opening bracket and the rest comes from `tokens`.
    fn set(&mut self, index: usize, value: &Token, tokens: &mut Tokens<'_>) -> Result<(), ConfError> {
        let (key, rule) = KEYS[index];
        let Self { settings, is_unfollowed } = self;
        let large_segment_mib = settings.large_segment_size_bytes / MIB;
        match rule {
            ConfKey::MaxSplitSize => {
                settings.max_split_size_bytes = Some(value.bytes_from_mib(key, large_segment_mib)?)
            }
            ConfKey::MaxNonSplitRounding => {
                settings.max_non_split_rounding_bytes = Some(value.bytes_from_mib(key, large_segment_mib)?)
            }
            ConfKey::LargeSegmentSize => {
                settings.large_segment_size_bytes = value.bytes_from_mib(key, MIN_LARGE_SEGMENT_MIB)?
            }
            ConfKey::GarbageCollectionThreshold => {
                settings.garbage_collection_threshold =
                    value.number(key, "above 0 and below 1", |threshold| threshold > 0.0 && threshold < 1.0)?;
            }
            ConfKey::Divisions if value.text == "[" => {
                parse_division_list(key, &mut settings.roundup_power2_divisions, tokens)?
            }
            ConfKey::Divisions => match value.whole_number()? {
                divisions if divisions.is_power_of_two() => settings.roundup_power2_divisions = [divisions; 16],
                _ => return Err(value.out_of_range(key, "a power of two")),
            },
            ConfKey::ExpandableSegments => settings.expandable_segments = value.flag()?,
            ConfKey::PerProcessMemoryFraction => {
                settings.per_process_memory_fraction =
                    value.number(key, "from 0 to 1", |fraction| (0.0..=1.0).contains(&fraction))?;
            }
            ConfKey::Backend => match value.text.as_str() {
                "native" => {}
                "cudaMallocAsync" | "hipMallocAsync" => {
                    return Err(value.error(ConfErrorKind::OtherBackend { backend: value.text.clone() }));
                }
                _ => return Err(value.expected("native")),
            },
            ConfKey::IgnoredFlag => drop(value.flag()?),
            ConfKey::IgnoredThreads => match value.whole_number()? {
                threads if threads.is_power_of_two() && threads <= 128 => {}
                _ => return Err(value.out_of_range(key, "a power of two up to 128")),
            },
            ConfKey::IgnoredSize { min_mib } => drop(value.bytes_from_mib(key, min_mib)?),
            ConfKey::UnfollowedFlag => is_unfollowed[index] = value.flag()?,
            ConfKey::SegmentReserve => {
                check_reserve(key, value)?;
                is_unfollowed[index] = true;
            }
            ConfKey::SegmentReserveByClass if value.text == "[" => {
                is_unfollowed[index] = false;
                for_each_pair(tokens, ["a class or a closing bracket", "a reserve"], |_, reserve| {
                    is_unfollowed[index] = true;
                    check_reserve(key, reserve)
                })?;
            }
            ConfKey::SegmentReserveByClass => return Err(value.expected("an opening bracket")),
        }
        Ok(())
    }
}

/// Checks a reserve of expandable segments, the value of `key`: a share of the device's memory, or
/// a number of GiB followed by `G`.
fn check_reserve(key: &'static str, value: &Token) -> Result<(), ConfError> {
    let number = value.text.strip_suffix(['G', 'g']).unwrap_or(&value.text);
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(()),
        _ => Err(value.out_of_range(key, "a fraction such as 0.5 or GiB such as 40G")),
    }
}

/// Passes the key and value of each pair of a list to `pair`. The opening bracket was already
/// removed from `tokens`. `expected` describes, for error messages, what may be a key or the end of
/// the list, and what may be a value.
fn for_each_pair(
    tokens: &mut Tokens<'_>,
    expected: [&'static str; 2],
    mut pair: impl FnMut(&Token, &Token) -> Result<(), ConfError>,
) -> Result<(), ConfError> {
    loop {
        let key = tokens.expect(expected[0])?;
        if key.text == "]" {
            return Ok(());
        }
        tokens.expect_colon()?;
        pair(&key, &tokens.expect(expected[1])?)?;
        let separator = tokens.expect("a comma or a closing bracket")?;
        match separator.text.as_str() {
            "," => {}
            "]" => return Ok(()),
            _ => return Err(separator.expected("a comma or a closing bracket")),
        }
    }
}

/// Parses a list of pairs `size in MiB:divisions`, the value of `key` after its opening bracket,
/// into `table`: the number of rounding steps up to the next power of two, for each power of two
/// from 1 MiB on. The first pair also applies to all smaller sizes, any other pair only to its own
/// size, and a pair with `>` as its size to all sizes above that of the pair before it.
fn parse_division_list(key: &'static str, table: &mut [u64; 16], tokens: &mut Tokens<'_>) -> Result<(), ConfError> {
    let mut last_row = None;
    for_each_pair(tokens, ["a size in MiB, > or a closing bracket", "a number of divisions"], |size, value| {
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
        Ok(())
    })
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

/// Returns the error for a key that does not exist, without a suggestion of a similar key.
fn unknown_key(key: &Token) -> ConfError {
    key.error(ConfErrorKind::UnknownKey { key: key.quote(), nearest: None })
}

/// Adds the most similar existing key to the error of an unknown one, if at most a third of the
/// characters differ. The comparison with all keys takes longer than parsing, so it is left out for
/// errors that are not shown.
pub(crate) fn with_nearest_key(mut error: ConfError) -> ConfError {
    if let ConfErrorKind::UnknownKey { key, nearest } = &mut error.kind {
        let distances = KEYS.iter().map(|&(name, _)| (strsim::levenshtein(name, key), name));
        *nearest = distances.min().filter(|(distance, name)| 3 * distance <= name.len()).map(|(_, name)| name);
    }
    error
}
