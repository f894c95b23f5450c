//! Settings as text: what is accepted, what is refused and where, and that what is written reads back.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use vramscope_pool::{ConfError, ConfErrorKind, Settings};

const MIB: u64 = 1 << 20;

fn divisions(of: impl Fn(usize) -> u64) -> Settings {
    Settings { roundup_power2_divisions: std::array::from_fn(of), ..Settings::default() }
}

#[test]
fn texts_that_pytorch_accepts_are_accepted() {
    let default = Settings::default();
    let table = [
        ("", default.clone()),
        ("  ", default.clone()),
        ("max_split_size_mb:32", Settings { max_split_size: Some(32 * MIB), ..default.clone() }),
        ("max_split_size_mb:20,", Settings { max_split_size: Some(20 * MIB), ..default.clone() }),
        // More than there are addresses stands for the most that there can be.
        (
            "max_split_size_mb:18446744073709551615",
            Settings { max_split_size: Some(0u64.wrapping_sub(MIB)), ..default.clone() },
        ),
        ("max_non_split_rounding_mb:64", Settings { max_non_split_rounding: Some(64 * MIB), ..default.clone() }),
        ("large_segment_size_mb:11", Settings { large_segment_size: 11 * MIB, ..default.clone() }),
        (
            "large_segment_size_mb:11,max_split_size_mb:12",
            Settings { large_segment_size: 11 * MIB, max_split_size: Some(12 * MIB), ..default.clone() },
        ),
        // The segment's size is read first, wherever it stands.
        (
            "max_split_size_mb:12,max_non_split_rounding_mb:13,large_segment_size_mb:11",
            Settings {
                large_segment_size: 11 * MIB,
                max_split_size: Some(12 * MIB),
                max_non_split_rounding: Some(13 * MIB),
                ..default.clone()
            },
        ),
        ("garbage_collection_threshold:0.6", Settings { garbage_collection_threshold: 0.6, ..default.clone() }),
        (" expandable_segments : True ", Settings { expandable_segments: true, ..default.clone() }),
        ("expandable_segments:True,expandable_segments:False", default.clone()),
        ("per_process_memory_fraction:0", Settings { per_process_memory_fraction: 0.0, ..default.clone() }),
        ("per_process_memory_fraction:1", default.clone()),
        ("backend:native,max_ split\t_size_mb:2 0", Settings { max_split_size: Some(20 * MIB), ..default.clone() }),
        ("roundup_power2_divisions:8", divisions(|_| 8)),
        ("roundup_power2_divisions:1", divisions(|_| 1)),
        ("roundup_power2_divisions:[]", default.clone()),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", divisions(|place| [1, 2, 4, 8][place.clamp(8, 11) - 8])),
        // Only the first pair holds for the sizes below it.
        ("roundup_power2_divisions:[64:8,256:4]", divisions(|place| [8, 0, 4, 0][place.clamp(6, 9) - 6])),
        ("roundup_power2_divisions:[64:8,>:0,]", divisions(|place| if place <= 6 { 8 } else { 0 })),
        ("roundup_power2_divisions:[>:4]", divisions(|place| if place == 0 { 0 } else { 4 })),
        ("roundup_power2_divisions:[1048576:2]", divisions(|_| 2)),
    ];
    for (conf, settings) in table {
        assert_eq!(Settings::parse(conf), Ok(settings), "{conf}");
    }
}

#[test]
fn settings_that_do_not_move_a_block_are_checked_and_ignored() {
    let accepted = [
        "release_lock_on_cudamalloc:True",
        "release_lock_on_hipmalloc:False",
        "pinned_use_cuda_host_register:True",
        "pinned_use_hip_host_register:True",
        "pinned_use_background_threads:False",
        "pinned_num_register_threads:128",
        "pinned_reserve_segment_size_mb:1",
        "graph_capture_record_stream_reuse:True",
    ];
    for conf in accepted {
        assert_eq!(Settings::parse(conf), Ok(Settings::default()), "{conf}");
        let (key, _) = conf.split_once(':').unwrap();
        let refused = Settings::parse(&format!("{key}:0"));
        assert_eq!(refused.map_err(|error| error.position), Err(key.len() + 1), "{key}:0");
    }
}

#[test]
fn other_texts_are_refused_with_the_place_and_the_reason() {
    let table = [
        (
            "max_split_size:32",
            "there is no setting \"max_split_size\" (character 1); the nearest there is: max_split_size_mb",
        ),
        (
            "backend:native, expandable_segment:True",
            "there is no setting \"expandable_segment\" (character 17); the nearest there is: expandable_segments",
        ),
        ("colour:blue", "there is no setting \"colour\" (character 1)"),
        (",backend:native", "there is no setting \",\" (character 1)"),
        ("backend", "the settings end where a colon must stand (character 8)"),
        ("backend,native", "\",\" stands where a colon must (character 8)"),
        ("backend:", "the settings end where a value must stand (character 9)"),
        ("backend:jemalloc", "\"jemalloc\" stands where native must (character 9)"),
        (
            "backend:cudaMallocAsync",
            "the backend cudaMallocAsync leaves blocks to the driver; this is the native allocator (character 9)",
        ),
        ("backend:native:", "\":\" stands where a comma must (character 15)"),
        ("expandable_segments:true", "\"true\" stands where True or False must (character 21)"),
        ("expandable_segments:[True]", "\"[\" stands where True or False must (character 21)"),
        ("max_split_size_mb:19", "max_split_size_mb is 19 and must be at least 20 (character 19)"),
        ("max_split_size_mb:-1", "\"-1\" stands where a whole number must (character 19)"),
        ("max_split_size_mb:64MB", "\"64MB\" stands where a whole number must (character 19)"),
        (
            "large_segment_size_mb:64,max_non_split_rounding_mb:32",
            "max_non_split_rounding_mb is 32 and must be at least 64 (character 52)",
        ),
        (
            "max_split_size_mb:32,large_segment_size_mb:64",
            "max_split_size_mb is 32 and must be at least 64 (character 19)",
        ),
        ("large_segment_size_mb:10", "large_segment_size_mb is 10 and must be at least 11 (character 23)"),
        (
            "garbage_collection_threshold:1.0",
            "garbage_collection_threshold is 1.0 and must be above 0 and below 1 (character 30)",
        ),
        (
            "garbage_collection_threshold:nan",
            "garbage_collection_threshold is nan and must be above 0 and below 1 (character 30)",
        ),
        (
            "per_process_memory_fraction:1.01",
            "per_process_memory_fraction is 1.01 and must be from 0 to 1 (character 29)",
        ),
        ("roundup_power2_divisions:3", "roundup_power2_divisions is 3 and must be a power of two (character 26)"),
        ("roundup_power2_divisions:0", "roundup_power2_divisions is 0 and must be a power of two (character 26)"),
        (
            "roundup_power2_divisions:[256:3]",
            "roundup_power2_divisions is 3 and must be 0 or a power of two for each size (character 31)",
        ),
        (
            "roundup_power2_divisions:[100:4]",
            "roundup_power2_divisions is 100 and must be a list whose sizes are powers of two (character 27)",
        ),
        (
            "roundup_power2_divisions:[256:4",
            "the settings end where a comma or a closing bracket must stand (character 32)",
        ),
        ("roundup_power2_divisions:[256:4:", "\":\" stands where a comma or a closing bracket must (character 32)"),
        ("roundup_power2_divisions:[256", "the settings end where a colon must stand (character 30)"),
        // Characters, not bytes.
        ("backend:nätiv€", "\"nätiv€\" stands where native must (character 9)"),
        ("backend:native,€uro:1", "there is no setting \"€uro\" (character 16)"),
    ];
    for (conf, message) in table {
        assert_eq!(Settings::parse(conf).map_err(|error| error.to_string()), Err(message.to_owned()), "{conf}");
    }
}

#[test]
fn an_error_repeats_a_long_word_in_part() {
    let Err(ConfError { position: 0, kind: ConfErrorKind::UnknownKey { key, nearest: None } }) =
        Settings::parse(&"ä".repeat(1 << 20))
    else {
        panic!("a key of a million characters is unknown");
    };
    assert_eq!(key.chars().count(), 61);
}

#[test]
fn what_is_as_by_default_is_not_written() {
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
        // What the rounding is without being set.
        ("max_non_split_rounding_mb:64,large_segment_size_mb:64", "large_segment_size_mb:64"),
        ("max_non_split_rounding_mb:64", "max_non_split_rounding_mb:64"),
    ];
    for (conf, shortest) in table {
        assert_eq!(Settings::parse(conf).unwrap().to_conf(), shortest, "{conf}");
    }
    assert_eq!(Settings { limit_bytes: Some(1), ..Settings::default() }.to_conf(), "");
}

/// All settings that a text can say.
fn settings() -> impl Strategy<Value = Settings> {
    let mib = || prop_oneof![Just(20u64), 11..64u64, 11..1u64 << 44].prop_map(|mib| mib * MIB);
    let division = || prop_oneof![2 => Just(0u64), 3 => (0..5u32).prop_map(|log| 1 << log), 1 => (0..64u32).prop_map(|log| 1 << log)];
    let runs = vec((1..16usize, division()), 1..6).prop_map(|runs| {
        let mut table = runs.into_iter().flat_map(|(count, divisions)| std::iter::repeat_n(divisions, count));
        std::array::from_fn(|_| table.next().unwrap_or(0))
    });
    let tables = prop_oneof![runs, proptest::array::uniform16(division())];
    let threshold = prop_oneof![Just(0.0), 1e-300..1.0f64];
    // No size is below the large segment's, and a rounding that is said is another than it.
    let sizes = mib().prop_flat_map(move |large| {
        let above = || prop_oneof![Just(MIB), MIB..1u64 << 50].prop_map(move |more| (large + more) / MIB * MIB);
        (option::of(prop_oneof![Just(large), above()]), option::of(above()), Just(large))
    });
    (sizes, tables, threshold, any::<bool>(), 0.0..=1.0f64).prop_map(
        |(
            (max_split_size, max_non_split_rounding, large_segment_size),
            roundup_power2_divisions,
            gc,
            expandable,
            fraction,
        )| Settings {
            max_split_size,
            max_non_split_rounding,
            roundup_power2_divisions,
            garbage_collection_threshold: gc,
            expandable_segments: expandable,
            large_segment_size,
            per_process_memory_fraction: fraction,
            limit_bytes: None,
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_reads_back(settings in settings()) {
        let conf = settings.to_conf();
        prop_assert_eq!(Settings::parse(&conf).map_err(|error| error.to_string()), Ok(settings), "{}", conf);
    }

    #[test]
    fn whatever_is_accepted_is_written_and_reads_back(
        words in vec(prop_oneof![
            Just(","), Just(":"), Just("["), Just("]"), Just(">"), Just(" "), Just("-"), Just("0"), Just("1"), Just("64"), Just(".5"),
            Just("True"), Just("max_split_size_mb:"), Just("large_segment_size_mb:"), Just("roundup_power2_divisions:["),
            Just("roundup_power2_divisions:8"), Just("garbage_collection_threshold:0"), Just("expandable_segments:True,"),
            Just("ä"), Just("18446744073709551616"), Just("NaN"), Just("1e999"),
        ], 0..24),
    ) {
        if let Ok(settings) = Settings::parse(&words.concat()) {
            prop_assert_eq!(Settings::parse(&settings.to_conf()), Ok(settings));
        }
    }

    #[test]
    fn no_text_is_too_much(text in any::<String>()) {
        let _ = Settings::parse(&text).map_err(|error| error.to_string());
    }
}
