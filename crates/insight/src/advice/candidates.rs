//! Settings to try: one key at a time, combinations of the best, and values around the best.

use vramscope_pool::Settings;

use super::request_profile::RequestProfile;
use super::trial::{Trial, count_keys};

/// Number of bytes in a MiB.
const MIB: u64 = 1 << 20;
/// Maximum number of settings of the first round, in each of which one key differs from PyTorch's
/// defaults; the recorded settings come on top.
const MAX_SINGLE: usize = 13;
/// Maximum number of combinations of keys to try.
const MAX_COMBINED: usize = 5;
/// Maximum number of settings close to the best, in one round.
const MAX_REFINED: usize = 3;
/// Values of `max_split_size_mb` to try. Values above the program's largest segment are skipped.
const SPLIT_SIZES_MIB: [u64; 8] = [32, 64, 128, 256, 512, 1024, 4096, 16384];
/// Maximum number of values of `max_split_size_mb` in the first round.
const MAX_SPLIT_SIZES: usize = 4;
/// Values of `roundup_power2_divisions` to try.
const DIVISIONS: [u64; 4] = [16, 8, 4, 2];
/// Values of `garbage_collection_threshold` to try.
const THRESHOLDS: [f64; 2] = [0.8, 0.6];
/// Values of `large_segment_size_mb` to try. The driver maps whole pages of 2 MiB.
const LARGE_SEGMENT_MIB: [u64; 2] = [12, 40];

/// Copies a key's value from one settings to others.
type CopySetting = fn(&Settings, &mut Settings);

/// The keys of the allocator's settings that candidates change, each as a function that copies its
/// value.
const KEYS: [CopySetting; 6] = [
    |from, to| to.expandable_segments = from.expandable_segments,
    |from, to| to.max_split_size_bytes = from.max_split_size_bytes,
    |from, to| to.max_non_split_rounding_bytes = from.max_non_split_rounding_bytes,
    |from, to| to.roundup_power2_divisions = from.roundup_power2_divisions,
    |from, to| to.garbage_collection_threshold = from.garbage_collection_threshold,
    |from, to| to.large_segment_size_bytes = from.large_segment_size_bytes,
];

/// Returns `settings` with the value that `from` has for the key with index `key` in [`KEYS`].
fn with_value_of(settings: &Settings, key: usize, from: &Settings) -> Settings {
    let mut changed = settings.clone();
    KEYS[key](from, &mut changed);
    changed
}

/// Proposes settings to try. Each can act differently from all settings proposed before.
#[derive(Clone, Debug)]
pub(super) struct Candidates {
    profile: RequestProfile,
    /// PyTorch's defaults with the recorded share of the device's memory, which is a limit that the
    /// user chose.
    base: Settings,
    /// The settings proposed so far, without ineffective values.
    proposed: Vec<Settings>,
}

impl Candidates {
    /// Creates the candidates for a program that was recorded under `recorded`.
    pub(super) fn new(profile: RequestProfile, recorded: &Settings) -> Self {
        let base =
            Settings { per_process_memory_fraction: recorded.per_process_memory_fraction, ..Settings::default() };
        Self { profile, base, proposed: Vec::new() }
    }

    /// Returns the settings of the first round: the recorded ones, PyTorch's defaults, and the
    /// values of each key that can change a decision.
    pub(super) fn single(&mut self, recorded: &Settings) -> Vec<Settings> {
        let mut settings = self.unproposed([Settings { limit_bytes: None, ..recorded.clone() }], 1);
        let base = self.base.clone();
        let mut singles = vec![base.clone(), Settings { expandable_segments: true, ..base.clone() }];
        let reached = SPLIT_SIZES_MIB.map(|mib| mib * MIB).into_iter();
        let reached: Vec<u64> = reached.filter(|&max| max <= self.profile.largest_segment_bytes(&base)).collect();
        let step = reached.len().div_ceil(MAX_SPLIT_SIZES).max(1);
        let split = |&max| Settings { max_split_size_bytes: Some(max), ..base.clone() };
        singles.extend(reached.iter().step_by(step).map(split));
        singles.extend(DIVISIONS.map(|count| Settings { roundup_power2_divisions: [count; 16], ..base.clone() }));
        singles.extend(THRESHOLDS.map(|share| Settings { garbage_collection_threshold: share, ..base.clone() }));
        singles.extend(LARGE_SEGMENT_MIB.map(|mib| Settings { large_segment_size_bytes: mib * MIB, ..base.clone() }));
        settings.extend(self.unproposed(singles, MAX_SINGLE));
        settings
    }

    /// Returns combinations of the best value of each key. `ranked` are the trials of the first
    /// round, best first.
    pub(super) fn combined(&mut self, ranked: &[Trial]) -> Vec<Settings> {
        let Some(base) = ranked.iter().find(|trial| trial.settings == self.base) else { return Vec::new() };
        let is_useful = |trial: &&Trial| {
            let (figures, before) = (&trial.predicted, &base.predicted);
            let is_single = count_keys(&trial.settings) == count_keys(&self.base) + 1;
            is_single && (figures.ooms, figures.peak_reserved_bytes) < (before.ooms, before.peak_reserved_bytes)
        };
        // The best value of each key that helps, best key first.
        let mut best: Vec<(usize, Settings)> = Vec::new();
        for trial in ranked.iter().filter(is_useful) {
            let changes = |&key: &usize| with_value_of(&self.base, key, &trial.settings) != self.base;
            let key = (0..KEYS.len()).find(changes);
            if let Some(key) = key.filter(|&key| best.iter().all(|(other, _)| *other != key)) {
                best.push((key, trial.settings.clone()));
            }
        }
        let mut combinations = Vec::new();
        for (index, (_, first)) in best.iter().enumerate() {
            combinations.extend(best[index + 1..].iter().map(|(key, second)| with_value_of(first, *key, second)));
        }
        if let Some((_, best)) = best.first() {
            if best.expandable_segments {
                // With expandable segments this is the page size, which matters even if it changes
                // nothing without them.
                combinations.push(Settings { large_segment_size_bytes: LARGE_SEGMENT_MIB[0] * MIB, ..best.clone() });
            }
            if let Some(max) = best.max_split_size_bytes {
                combinations
                    .push(Settings { max_non_split_rounding_bytes: Some(max.saturating_mul(2)), ..best.clone() });
            }
        }
        self.unproposed(combinations, MAX_COMBINED)
    }

    /// Returns at most `max` settings with values close to the best settings. `ranked` are all
    /// trials, best first.
    pub(super) fn refined(&mut self, ranked: &[Trial], max: usize) -> Vec<Settings> {
        let Some(Trial { settings: best, .. }) = ranked.first() else { return Vec::new() };
        let mut refined = Vec::new();
        if let Some(max) = best.max_split_size_bytes {
            let sizes = [max / 4 * 3, (max / 2).saturating_mul(3)].map(|max| max / MIB * MIB);
            refined.extend(sizes.map(|max| Settings { max_split_size_bytes: Some(max), ..best.clone() }));
        }
        if best.expandable_segments || best.large_segment_size_bytes != self.base.large_segment_size_bytes {
            let mib = best.large_segment_size_bytes / MIB;
            // The driver maps whole pages of 2 MiB.
            let sizes = [mib / 2, mib / 4 * 3, mib / 2 * 3, mib * 2].map(|mib| mib.next_multiple_of(2));
            refined.extend(
                sizes.map(|mib| Settings { large_segment_size_bytes: mib.saturating_mul(MIB), ..best.clone() }),
            );
        }
        if best.roundup_power2_divisions != self.base.roundup_power2_divisions {
            // Rounding only requests of 16 MiB and more, or only smaller ones.
            let (mut large, mut small) = (best.roundup_power2_divisions, best.roundup_power2_divisions);
            large[..4].fill(0);
            small[4..].fill(0);
            refined.extend(
                [large, small].map(|roundup_power2_divisions| Settings { roundup_power2_divisions, ..best.clone() }),
            );
        }
        if best.garbage_collection_threshold > 0.0 {
            refined.extend([0.7, 0.9].map(|share| Settings { garbage_collection_threshold: share, ..best.clone() }));
        }
        self.unproposed(refined, MAX_REFINED.min(max))
    }

    /// Returns the first `max` of `settings` that are valid and can act differently from all
    /// settings proposed before.
    fn unproposed(&mut self, settings: impl IntoIterator<Item = Settings>, max: usize) -> Vec<Settings> {
        let is_valid = |settings: &Settings| Settings::parse(&settings.to_conf()).as_ref() == Ok(settings);
        let mut new = Vec::new();
        for settings in settings.into_iter().filter(is_valid) {
            let effective = self.profile.effective(&settings);
            if new.len() < max && !self.proposed.contains(&effective) {
                self.proposed.push(effective);
                new.push(settings);
            }
        }
        new
    }

    /// Returns the peak of the live requests, each rounded up to 512 bytes.
    pub(super) fn floor_bytes(&self) -> u64 {
        self.profile.floor_bytes
    }
}
