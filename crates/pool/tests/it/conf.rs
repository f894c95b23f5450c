//! Settings as text: accepted text, error messages with positions, and round trips.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use vramscope_pool::{ConfError, ConfErrorKind, Settings};

const MIB: u64 = 1 << 20;

/// Returns the default settings with the number of divisions that `of` returns for each index.
fn divisions(of: impl Fn(usize) -> u64) -> Settings {
    Settings { roundup_power2_divisions: std::array::from_fn(of), ..Settings::default() }
}

#[test]
fn settings_parse_like_pytorch() {
    let default = Settings::default();
    let table = [
        ("", default.clone()),
        ("  ", default.clone()),
        ("max_split_size_mb:32", Settings { max_split_size_bytes: Some(32 * MIB), ..default.clone() }),
        ("max_split_size_mb:20,", Settings { max_split_size_bytes: Some(20 * MIB), ..default.clone() }),
        // Sizes beyond the address space become the largest multiple of a MiB.
        (
            "max_split_size_mb:18446744073709551615",
            Settings { max_split_size_bytes: Some(0u64.wrapping_sub(MIB)), ..default.clone() },
        ),
        ("max_non_split_rounding_mb:64", Settings { max_non_split_rounding_bytes: Some(64 * MIB), ..default.clone() }),
        ("large_segment_size_mb:11", Settings { large_segment_size_bytes: 11 * MIB, ..default.clone() }),
        (
            "large_segment_size_mb:11,max_split_size_mb:12",
            Settings { large_segment_size_bytes: 11 * MIB, max_split_size_bytes: Some(12 * MIB), ..default.clone() },
        ),
        // The segment size is applied first, wherever it is in the text.
        (
            "max_split_size_mb:12,max_non_split_rounding_mb:13,large_segment_size_mb:11",
            Settings {
                large_segment_size_bytes: 11 * MIB,
                max_split_size_bytes: Some(12 * MIB),
                max_non_split_rounding_bytes: Some(13 * MIB),
                ..default.clone()
            },
        ),
        ("garbage_collection_threshold:0.6", Settings { garbage_collection_threshold: 0.6, ..default.clone() }),
        (" expandable_segments : True ", Settings { expandable_segments: true, ..default.clone() }),
        ("expandable_segments:True,expandable_segments:False", default.clone()),
        ("per_process_memory_fraction:0", Settings { per_process_memory_fraction: 0.0, ..default.clone() }),
        ("per_process_memory_fraction:1", default.clone()),
        (
            "backend:native,max_ split\t_size_mb:2 0",
            Settings { max_split_size_bytes: Some(20 * MIB), ..default.clone() },
        ),
        ("roundup_power2_divisions:8", divisions(|_| 8)),
        ("roundup_power2_divisions:1", divisions(|_| 1)),
        ("roundup_power2_divisions:[]", default.clone()),
        (
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
            divisions(|position| [1, 2, 4, 8][position.clamp(8, 11) - 8]),
        ),
        // Only the first pair applies to the sizes below it.
        ("roundup_power2_divisions:[64:8,256:4]", divisions(|position| [8, 0, 4, 0][position.clamp(6, 9) - 6])),
        ("roundup_power2_divisions:[64:8,>:0,]", divisions(|position| if position <= 6 { 8 } else { 0 })),
        ("roundup_power2_divisions:[>:4]", divisions(|position| if position == 0 { 0 } else { 4 })),
        ("roundup_power2_divisions:[1048576:2]", divisions(|_| 2)),
    ];
    for (conf, settings) in table {
        assert_eq!(Settings::parse(conf), Ok(settings), "{conf}");
    }
}

#[test]
fn settings_without_effect_are_checked_and_ignored() {
    let accepted = [
        "release_lock_on_cudamalloc:True",
        "release_lock_on_hipmalloc:False",
        "pinned_use_cuda_host_register:True",
        "pinned_use_hip_host_register:True",
        "pinned_use_background_threads:False",
        "pinned_num_register_threads:128",
        "pinned_reserve_segment_size_mb:1",
        "pinned_free_catch_all:True",
        "graph_capture_record_stream_reuse:True",
        "throw_on_cudamalloc_oom:True",
        "expandable_segments_reserve:0.5",
        "expandable_segments_reserve:40G",
        "expandable_segments_reserve:1.5g",
    ];
    for conf in accepted {
        assert_eq!(Settings::parse(conf), Ok(Settings::default()), "{conf}");
        let (key, _) = conf.split_once(':').unwrap();
        let refused = Settings::parse(&format!("{key}:0"));
        assert_eq!(refused.map_err(|error| error.position), Err(key.len() + 1), "{key}:0");
    }
    for conf in [
        "pinned_max_round_threshold_mb:0",
        "pinned_max_cached_size_mb:1024",
        "expandable_segments_reserve_by_class:[]",
        "expandable_segments_reserve_by_class:[serving:0.25,capture:8G,]",
        "expandable_segments:False,expandable_segments_reserve_by_class : [ a : 1 ],",
    ] {
        assert_eq!(Settings::parse(conf), Ok(Settings::default()), "{conf}");
    }
}

#[test]
fn parse_errors_have_position_and_reason() {
    let table = [
        (
            "max_split_size_bytes:32",
            "character 1: unknown setting \"max_split_size_bytes\"; did you mean max_split_size_mb?",
        ),
        (
            "backend:native, expandable_segment:True",
            "character 17: unknown setting \"expandable_segment\"; did you mean expandable_segments?",
        ),
        ("colour:blue", "character 1: unknown setting \"colour\""),
        (",backend:native", "character 1: unknown setting \",\""),
        ("backend", "character 8: expected a colon, found the end of the text"),
        ("backend,native", "character 8: expected a colon, found \",\""),
        ("backend:", "character 9: expected a value, found the end of the text"),
        ("backend:jemalloc", "character 9: expected native, found \"jemalloc\""),
        (
            "backend:cudaMallocAsync",
            "character 9: the pool does not implement the backend cudaMallocAsync, only native",
        ),
        (
            "expandable_segments_reserve:0",
            "character 29: expandable_segments_reserve must be a fraction such as 0.5 or GiB such as 40G, not 0",
        ),
        (
            "expandable_segments_reserve_by_class:[a:infG]",
            "character 41: expandable_segments_reserve_by_class must be a fraction such as 0.5 or GiB such as 40G, not \
             infG",
        ),
        ("expandable_segments_reserve_by_class:0.5", "character 38: expected an opening bracket, found \"0.5\""),
        ("expandable_segments_reserve_by_class:[a", "character 40: expected a colon, found the end of the text"),
        ("pinned_max_cached_size_mb:-1", "character 27: expected a whole number of MiB, found \"-1\""),
        ("backend:native:", "character 15: expected a comma, found \":\""),
        ("expandable_segments:true", "character 21: expected True or False, found \"true\""),
        ("expandable_segments:[True]", "character 21: expected True or False, found \"[\""),
        ("max_split_size_mb:19", "character 19: max_split_size_mb must be at least 20, not 19"),
        ("max_split_size_mb:-1", "character 19: expected a whole number of MiB, found \"-1\""),
        ("max_split_size_mb:64MB", "character 19: expected a whole number of MiB, found \"64MB\""),
        (
            "large_segment_size_mb:64,max_non_split_rounding_mb:32",
            "character 52: max_non_split_rounding_mb must be at least 64, not 32",
        ),
        (
            "max_split_size_mb:32,large_segment_size_mb:64",
            "character 19: max_split_size_mb must be at least 64, not 32",
        ),
        ("large_segment_size_mb:10", "character 23: large_segment_size_mb must be at least 11, not 10"),
        (
            "garbage_collection_threshold:1.0",
            "character 30: garbage_collection_threshold must be above 0 and below 1, not 1.0",
        ),
        (
            "garbage_collection_threshold:nan",
            "character 30: garbage_collection_threshold must be above 0 and below 1, not nan",
        ),
        ("per_process_memory_fraction:1.01", "character 29: per_process_memory_fraction must be from 0 to 1, not 1.01"),
        ("roundup_power2_divisions:3", "character 26: roundup_power2_divisions must be a power of two, not 3"),
        ("roundup_power2_divisions:0", "character 26: roundup_power2_divisions must be a power of two, not 0"),
        (
            "roundup_power2_divisions:[256:3]",
            "character 31: roundup_power2_divisions must be 0 or a power of two for each size, not 3",
        ),
        (
            "roundup_power2_divisions:[100:4]",
            "character 27: roundup_power2_divisions must be a list whose sizes are powers of two, not 100",
        ),
        (
            "roundup_power2_divisions:[256:4",
            "character 32: expected a comma or a closing bracket, found the end of the text",
        ),
        ("roundup_power2_divisions:[256:4:", "character 32: expected a comma or a closing bracket, found \":\""),
        ("roundup_power2_divisions:[256", "character 30: expected a colon, found the end of the text"),
        // Positions count characters, not bytes.
        ("backend:nätiv€", "character 9: expected native, found \"nätiv€\""),
        ("backend:native,€uro:1", "character 16: unknown setting \"€uro\""),
    ];
    for (conf, message) in table {
        assert_eq!(Settings::parse(conf).map_err(|error| error.to_string()), Err(message.to_owned()), "{conf}");
    }
}

#[test]
fn errors_truncate_long_words() {
    let Err(ConfError { position: 0, kind: ConfErrorKind::UnknownKey { key, nearest: None } }) =
        Settings::parse(&"ä".repeat(1 << 20))
    else {
        panic!("a key of a million characters is unknown");
    };
    assert_eq!(key.chars().count(), 61);
}

#[test]
fn to_conf_omits_defaults() {
    let table = [
        ("", ""),
        ("expandable_segments:False,per_process_memory_fraction:1.0,max_non_split_rounding_mb:20", ""),
        ("max_split_size_mb: 0032", "max_split_size_mb:32"),
        (
            "per_process_memory_fraction:0.25,garbage_collection_threshold:6e-1",
            "garbage_collection_threshold:0.6,per_process_memory_fraction:0.25",
        ),
        ("garbage_collection_threshold:1e-9", "garbage_collection_threshold:1e-9"),
        ("roundup_power2_divisions:[1:4,>:4]", "roundup_power2_divisions:4"),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"),
        ("roundup_power2_divisions:[64:8,256:4,512:0]", "roundup_power2_divisions:[64:8,256:4]"),
        ("roundup_power2_divisions:[1:8,1024:0,>:2]", "roundup_power2_divisions:[1:8,1024:0,>:2]"),
        ("max_split_size_mb:64,large_segment_size_mb:64", "large_segment_size_mb:64,max_split_size_mb:64"),
        // A rounding equal to the default is omitted.
        ("max_non_split_rounding_mb:64,large_segment_size_mb:64", "large_segment_size_mb:64"),
        ("max_non_split_rounding_mb:64", "max_non_split_rounding_mb:64"),
    ];
    for (conf, shortest) in table {
        assert_eq!(Settings::parse(conf).unwrap().to_conf(), shortest, "{conf}");
    }
    assert_eq!(Settings { limit_bytes: Some(1), ..Settings::default() }.to_conf(), "");
}

/// Generates all settings that text can express.
fn settings() -> impl Strategy<Value = Settings> {
    let mib = || prop_oneof![Just(20u64), 11..64u64, 11..1u64 << 44].prop_map(|mib| mib * MIB);
    let power_of_two = |logs: std::ops::Range<u32>| logs.prop_map(|log| 1u64 << log);
    let division = || prop_oneof![2 => Just(0u64), 3 => power_of_two(0..5), 1 => power_of_two(0..64)];
    let runs = vec((1..16usize, division()), 1..6).prop_map(|runs| {
        let mut table = runs.into_iter().flat_map(|(count, divisions)| std::iter::repeat_n(divisions, count));
        std::array::from_fn(|_| table.next().unwrap_or(0))
    });
    let tables = prop_oneof![runs, proptest::array::uniform16(division())];
    let threshold = prop_oneof![Just(0.0), 1e-300..1.0f64];
    // No size is below the large segment size, and an explicit rounding differs from it.
    let sizes = mib().prop_flat_map(move |large| {
        let above = || prop_oneof![Just(MIB), MIB..1u64 << 50].prop_map(move |more| (large + more) / MIB * MIB);
        (option::of(prop_oneof![Just(large), above()]), option::of(above()), Just(large))
    });
    (sizes, tables, threshold, any::<bool>(), 0.0..=1.0f64).prop_map(
        |(
            (max_split_size_bytes, max_non_split_rounding_bytes, large_segment_size_bytes),
            roundup_power2_divisions,
            gc,
            expandable,
            fraction,
        )| Settings {
            max_split_size_bytes,
            max_non_split_rounding_bytes,
            roundup_power2_divisions,
            garbage_collection_threshold: gc,
            expandable_segments: expandable,
            large_segment_size_bytes,
            per_process_memory_fraction: fraction,
            limit_bytes: None,
        },
    )
}

proptest! {
    #[test]
    fn to_conf_round_trips(settings in settings()) {
        let conf = settings.to_conf();
        prop_assert_eq!(Settings::parse(&conf).map_err(|error| error.to_string()), Ok(settings), "{}", conf);
    }

    #[test]
    fn accepted_text_round_trips(
        words in vec(prop_oneof![
            Just(","), Just(":"), Just("["), Just("]"), Just(">"), Just(" "), Just("-"), Just("0"), Just("1"),
            Just("64"), Just(".5"), Just("True"), Just("max_split_size_mb:"), Just("large_segment_size_mb:"),
            Just("roundup_power2_divisions:["), Just("roundup_power2_divisions:8"),
            Just("garbage_collection_threshold:0"), Just("expandable_segments:True,"),
            Just("ä"), Just("18446744073709551616"), Just("NaN"), Just("1e999"),
        ], 0..24),
    ) {
        if let Ok(settings) = Settings::parse(&words.concat()) {
            prop_assert_eq!(Settings::parse(&settings.to_conf()), Ok(settings));
        }
    }

    #[test]
    fn any_text_parses_without_panic(text in any::<String>()) {
        let _ = Settings::parse(&text).map_err(|error| error.to_string());
    }
}
