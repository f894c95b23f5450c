//! Settings of a recording: unknown settings are skipped and named, and all others apply.

use proptest::prelude::*;
use vramscope_pool::{RecordedConf, Settings};

const MIB: u64 = 1 << 20;
/// The end of each note.
const EFFECT: &str = "; the results of verify, simulate and what-if may differ from the program";

fn skipped(conf: &RecordedConf) -> Vec<String> {
    conf.skipped.iter().map(ToString::to_string).collect()
}

#[test]
fn unknown_settings_are_skipped_and_known_ones_apply() {
    let expected = Settings { max_split_size_bytes: Some(64 * MIB), expandable_segments: true, ..Settings::default() };
    for (unknown, problem) in [
        ("page_size:1g", "character 22: unknown setting \"page_size\""),
        ("by_name:[a:1,b:[2,3],c:4]", "character 22: unknown setting \"by_name\""),
        ("flag", "character 22: unknown setting \"flag\""),
        ("backend:jemalloc", "character 30: expected native, found \"jemalloc\""),
        ("large_segment_size_mb:10", "character 44: large_segment_size_mb must be at least 11, not 10"),
        ("large_segment_size_mb:64MB", "character 44: expected a whole number of MiB, found \"64MB\""),
        ("backend:native:native", "character 36: expected a comma, found \":\""),
    ] {
        let conf = format!("max_split_size_mb:64,{unknown},expandable_segments:True");
        assert!(Settings::parse(&conf).is_err(), "{conf} is refused from a user");
        let recorded = RecordedConf::parse(&conf);
        assert_eq!(recorded.settings, expected, "{conf}");
        assert_eq!(skipped(&recorded), [problem], "{conf}");
    }
}

#[test]
fn settings_of_a_user_and_of_a_recording_agree_where_both_are_known() {
    for conf in ["", "expandable_segments:True,pinned_free_catch_all:True", "roundup_power2_divisions:[64:8,>:4],"] {
        let recorded = RecordedConf::parse(conf);
        assert_eq!(Ok(&recorded.settings), Settings::parse(conf).as_ref(), "{conf}");
        assert!(recorded.skipped.is_empty() && recorded.notes().is_empty(), "{conf}");
    }
}

#[test]
fn unclosed_list_is_skipped_to_the_end() {
    let recorded = RecordedConf::parse("max_split_size_mb:64,more:[a:1,expandable_segments:True");
    assert_eq!(recorded.settings, Settings { max_split_size_bytes: Some(64 * MIB), ..Settings::default() });
    assert_eq!(skipped(&recorded), ["character 22: unknown setting \"more\""]);
}

#[test]
fn many_skipped_settings_take_little_memory() {
    let recorded = RecordedConf::parse(&"x:1,".repeat(100_000));
    assert_eq!((recorded.skipped.len(), recorded.skipped_count), (16, 100_000));
    assert_eq!(
        recorded.notes(),
        [format!("skipped 100000 recorded allocator settings ({}; …){EFFECT}", skipped(&recorded)[..3].join("; "))]
    );
}

#[test]
fn notes_name_settings_that_the_pool_does_not_follow() {
    let notes = |conf| RecordedConf::parse(conf).notes();
    assert_eq!(notes("throw_on_cudamalloc_oom:False,expandable_segments_reserve_by_class:[]"), [""; 0]);
    assert_eq!(notes("expandable_segments_reserve:0.5"), [""; 0], "no segment is expandable");
    assert_eq!(
        notes("graph_capture_record_stream_reuse:True"),
        [format!("the pool does not follow graph_capture_record_stream_reuse{EFFECT}")]
    );
    assert_eq!(
        notes(
            "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5,expandable_segments:True,\
             expandable_segments_reserve:0.5,expandable_segments_reserve:0.6,\
             expandable_segments_reserve_by_class:[a:1G],page_size:1g"
        ),
        [
            format!("skipped 1 recorded allocator setting (character 195: unknown setting \"page_size\"){EFFECT}"),
            format!(
                "the pool does not follow throw_on_cudamalloc_oom, expandable_segments_reserve, {}{EFFECT}",
                "expandable_segments_reserve_by_class"
            ),
        ]
    );
}

#[test]
fn other_backend_is_named() {
    let recorded = RecordedConf::parse("backend:cudaMallocAsync,max_split_size_mb:32");
    assert_eq!(recorded.settings.max_split_size_bytes, Some(32 * MIB));
    let error = recorded.other_backend.expect("the allocator is not PyTorch's native one");
    let expected = "the pool does not implement the backend cudaMallocAsync, only native";
    assert_eq!(error.to_string(), format!("character 9: {expected}"));
    assert!(RecordedConf::parse("backend:native,page_size:1g").other_backend.is_none());
    // The backend follows more unknown settings than are kept.
    let recorded = RecordedConf::parse(&format!("{}backend:cudaMallocAsync", "x:1,".repeat(20)));
    assert_eq!(recorded.other_backend.map(|error| error.to_string()), Some(format!("character 89: {expected}")));
}

proptest! {
    #[test]
    fn any_text_gives_settings_that_text_can_express(text in any::<String>()) {
        let recorded = RecordedConf::parse(&text);
        prop_assert_eq!(Settings::parse(&recorded.settings.to_conf()), Ok(recorded.settings.clone()));
        match Settings::parse(&text) {
            Ok(settings) => prop_assert_eq!((settings, recorded.skipped_count), (recorded.settings, 0)),
            Err(error) => prop_assert_eq!(recorded.skipped.first(), Some(&error)),
        }
    }

    #[test]
    fn pieces_of_settings_give_settings_that_text_can_express(
        words in prop::collection::vec(prop_oneof![
            Just(","), Just(":"), Just("["), Just("]"), Just("64"), Just("True"), Just("max_split_size_mb:"),
            Just("large_segment_size_mb:12"), Just("roundup_power2_divisions:["), Just("expandable_segments:True,"),
            Just("expandable_segments_reserve_by_class:[a:1G"), Just("throw_on_cudamalloc_oom:"), Just("page_size:1g"),
            Just("backend:cudaMallocAsync"), Just("ä"),
        ], 0..24),
    ) {
        let recorded = RecordedConf::parse(&words.concat());
        prop_assert_eq!(Settings::parse(&recorded.settings.to_conf()), Ok(recorded.settings));
    }
}
