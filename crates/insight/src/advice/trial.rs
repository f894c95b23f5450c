//! Settings with their simulated figures, and the order of settings from best to worst.

use std::cmp::Ordering;

use vramscope_pool::Settings;
use vramscope_pool::rerun::RunSummary;

/// Allocator settings, and the figures of the simulated run under them.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// The settings.
    pub settings: Settings,
    /// The figures of the simulated run.
    pub predicted: RunSummary,
    /// True for the settings that the program was recorded under.
    pub is_recorded: bool,
}

impl Trial {
    /// Returns the number of settings that differ from PyTorch's defaults.
    #[must_use]
    pub fn keys(&self) -> usize {
        count_keys(&self.settings)
    }

    /// Orders trials from best to worst: by failed requests, reserved peak, calls of the driver and
    /// retries. Among equals, the recorded settings come first, then settings with fewer keys.
    pub(super) fn rank(&self, other: &Self) -> Ordering {
        let figures = |trial: &Self| {
            let RunSummary { ooms, peak_reserved_bytes, device_allocations, retries, .. } = trial.predicted;
            (ooms, peak_reserved_bytes, device_allocations, retries, !trial.is_recorded, trial.keys())
        };
        figures(self).cmp(&figures(other)).then_with(|| self.settings.to_conf().cmp(&other.settings.to_conf()))
    }
}

/// Returns the number of settings that differ from PyTorch's defaults.
pub(crate) fn count_keys(settings: &Settings) -> usize {
    let default = Settings::default();
    let is_set = [
        settings.max_split_size_bytes != default.max_split_size_bytes,
        settings.max_non_split_rounding_bytes != default.max_non_split_rounding_bytes,
        settings.roundup_power2_divisions != default.roundup_power2_divisions,
        settings.garbage_collection_threshold != default.garbage_collection_threshold,
        settings.expandable_segments != default.expandable_segments,
        settings.large_segment_size_bytes != default.large_segment_size_bytes,
        settings.per_process_memory_fraction != default.per_process_memory_fraction,
    ];
    is_set.into_iter().filter(|&is_set| is_set).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a trial of settings as text, with failed requests, reserved peak, driver calls and
    /// retries.
    fn trial(conf: &str, figures: [u64; 4], is_recorded: bool) -> Trial {
        let [ooms, peak_reserved_bytes, device_allocations, retries] = figures;
        let predicted = RunSummary { ooms, peak_reserved_bytes, device_allocations, retries, ..RunSummary::default() };
        Trial { settings: Settings::parse(conf).expect("valid settings"), predicted, is_recorded }
    }

    #[test]
    fn trials_are_ranked_by_failures_then_memory_then_cost() {
        // From best to worst; each differs from the next in one figure.
        let ranked = [
            trial("expandable_segments:True,max_split_size_mb:64", [0, 100, 5, 0], true),
            trial("", [0, 100, 5, 0], false),
            trial("expandable_segments:True", [0, 100, 5, 0], false),
            trial("expandable_segments:True,max_split_size_mb:32", [0, 100, 5, 0], false),
            trial("", [0, 100, 5, 1], false),
            trial("", [0, 100, 6, 0], false),
            trial("", [0, 101, 1, 0], false),
            trial("", [1, 10, 1, 0], true),
        ];
        for (index, better) in ranked.iter().enumerate() {
            for worse in &ranked[index + 1..] {
                assert_eq!(better.rank(worse), Ordering::Less, "{better:?} before {worse:?}");
            }
        }
    }
}
