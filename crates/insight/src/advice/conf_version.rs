//! The versions of PyTorch that know a setting.

use vramscope_pool::Settings;

/// Returns the first version of PyTorch that accepts all keys of `settings`, as major and minor
/// number; earlier ones refuse to start with an unknown key.
///
/// `docs/advise.md` names the source of each version.
#[must_use]
pub fn required_pytorch(settings: &Settings) -> (u32, u32) {
    let default = Settings::default();
    let table = [
        (settings.max_split_size_bytes != default.max_split_size_bytes, (1, 10)),
        (settings.garbage_collection_threshold != default.garbage_collection_threshold, (1, 12)),
        (settings.roundup_power2_divisions != default.roundup_power2_divisions, (1, 12)),
        (settings.expandable_segments, (2, 1)),
        (settings.max_non_split_rounding_bytes != default.max_non_split_rounding_bytes, (2, 6)),
        (settings.large_segment_size_bytes != default.large_segment_size_bytes, (2, 11)),
    ];
    table.into_iter().filter(|(is_set, _)| *is_set).map(|(_, version)| version).max().unwrap_or((1, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_key_determines_the_version() {
        let check = |conf: &str, version| {
            let settings = Settings::parse(conf).expect("valid settings");
            assert_eq!(required_pytorch(&settings), version, "{conf}");
        };
        check("", (1, 0));
        check("max_split_size_mb:64", (1, 10));
        check("max_split_size_mb:64,roundup_power2_divisions:4", (1, 12));
        check("expandable_segments:True", (2, 1));
        check("expandable_segments:True,large_segment_size_mb:40", (2, 11));
    }
}
