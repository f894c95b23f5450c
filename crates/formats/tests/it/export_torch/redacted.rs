//! Redacted recordings contain no names and keep everything else.

use vramscope_formats::export::{self, redact, redactor};
use vramscope_formats::{Limits, ignore_progress, import};
use vramscope_trace::{
    Category, DecodedItem, Decoder, Definition, DeviceInfo, Encoder, Event, EventKind, FormatError, Recording,
    RecordingInfo, SiteId, digest,
};

use super::common::{WRITERS, events, exported, imported, read, recording_of, snapshots};

/// Returns all items of a recording's bytes.
fn items(bytes: &[u8]) -> Vec<DecodedItem> {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    let mut items = Vec::new();
    while let Some(item) = decoder.next_item().expect("the recording is valid") {
        items.push(item);
    }
    items
}

/// Returns true if a text is a placeholder.
fn is_placeholder(text: &str) -> bool {
    let is_part = |part: &str| {
        let split = part.split_once('_');
        part.is_empty()
            || split.is_some_and(|(role, number)| {
                ["function", "file", "scope", "compile_context", "mark"].contains(&role)
                    && number.parse::<u32>().is_ok()
            })
    };
    !text.is_empty() && text.split('/').all(is_part)
}

/// Returns a site without its names: the line of each frame and whether its file is unknown, the
/// depth of the scope, and the category.
fn shape(recording: &Recording, site: SiteId) -> (Vec<(u32, bool)>, usize, Category) {
    let frames = export::frames(recording, site).map(|frame| (frame.line, frame.file.is_empty()));
    let site = recording.definitions().site(site);
    (frames.collect(), recording.definitions().string(site.scope).split('/').count(), site.category)
}

/// Returns an event without the name of a mark, whose number may differ.
fn nameless(mut event: Event) -> Event {
    if let EventKind::Mark { name, .. } = &mut event.kind {
        name.0 = 0;
    }
    event
}

#[test]
fn recordings_keep_their_structure_and_lose_their_names() {
    for path in snapshots() {
        let snapshot = read(&path);
        let original = imported(&snapshot, "a name");
        let begin = |info: &RecordingInfo| redactor(info, Encoder::new);
        let (redactor, _) = import(&snapshot, "a name", &Limits::default(), &mut ignore_progress, begin)
            .expect("the snapshot is valid");
        let (redacted, bytes) = recording_of(redactor.into_inner());

        for item in items(&bytes) {
            if let DecodedItem::Define(Definition::String(text)) = item {
                assert!(is_placeholder(&text), "{path:?}: {text:?}");
            }
        }
        let nameless_events = |recording| events(recording).into_iter().map(nameless).collect::<Vec<_>>();
        assert_eq!(nameless_events(&redacted), nameless_events(&original), "{path:?}");
        assert_eq!(digest(redacted.end_state()), digest(original.end_state()), "{path:?}");
        assert_eq!(redacted.definitions().site_count(), original.definitions().site_count(), "{path:?}");
        for site in (0..=original.definitions().site_count() as u32).map(SiteId) {
            assert_eq!(shape(&redacted, site), shape(&original, site), "{path:?}: {site:?}");
        }
        assert_eq!(redacted.annotations().len(), original.annotations().len(), "{path:?}");
    }
}

/// A snapshot with a text to hide in every field that is read.
fn snapshot_with_secrets() -> Vec<u8> {
    let frames = r#"[{"name": "HIDE_function", "filename": "/home/HIDE_user/HIDE_file.py", "line": 3},
        {"name": "HIDE_function", "filename": "HIDE_function", "line": 4}]"#;
    let entry = |action, size, text| {
        format!(
            r#"{{"action": "{action}", "addr": 1048576, "size": {size}, "stream": 0, "time_us": 5, "frames": {frames},
            "user_metadata": "{text}", "compile_context": "HIDE_compiled"}}"#
        )
    };
    let entries = [
        entry("segment_alloc", 2_097_152, ""),
        entry("alloc", 1024, "HIDE_step/HIDE_forward/HIDE_step"),
        entry("HIDE_action", 1, "HIDE_words"),
        entry("annotate", 1, "HIDE_note"),
        entry("annotate", 1, "HIDE_note"),
    ];
    format!(
        r#"{{"device_traces": [[{}]], "segments": [],
        "allocator_settings": {{"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32,HIDE_option:HIDE_value"}},
        "external_annotations": [{{"stage": "START", "name": "HIDE_annotation", "device": 0, "time_us": 6}}]}}"#,
        entries.join(",")
    )
    .into_bytes()
}

/// Returns the bytes of a redacted recording and of all exports of it.
fn outputs(recording: &Recording, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut outputs = vec![bytes.to_vec(), format!("{:?}", items(bytes)).into_bytes()];
    outputs.extend(WRITERS.map(|writer| exported(recording, writer)));
    outputs
}

/// Returns a recording in pieces.
fn pieces(bytes: &[u8]) -> impl Iterator<Item = Result<Vec<u8>, FormatError>> + '_ {
    bytes.chunks(1000).map(|piece| Ok(piece.to_vec()))
}

fn check_hidden(outputs: &[Vec<u8>]) {
    for output in outputs {
        let found = output.windows(4).position(|window| window.eq_ignore_ascii_case(b"HIDE"));
        let around = found.map(|at| String::from_utf8_lossy(&output[at.saturating_sub(40)..output.len().min(at + 40)]));
        assert!(found.is_none(), "{around:?}");
    }
}

#[test]
fn no_text_of_a_snapshot_remains() {
    let snapshot = snapshot_with_secrets();
    let begin = |info: &RecordingInfo| redactor(info, Encoder::new);
    let name = "/home/HIDE_user/HIDE_source";
    let (redactor, _) =
        import(&snapshot, name, &Limits::default(), &mut ignore_progress, begin).expect("the snapshot is valid");
    let (redacted, bytes) = recording_of(redactor.into_inner());
    check_hidden(&outputs(&redacted, &bytes));
    let plain = String::from_utf8(exported(&redacted, WRITERS[1])).expect("JSON is UTF-8");
    for kept in
        ["function_1", "file_1", "file_2", "scope_1/scope_2/scope_1", "compile_context_1", "mark_1", "\"size\":1024"]
    {
        assert!(plain.contains(kept), "no {kept} in {plain}");
    }
}

#[test]
fn recording_is_redacted_like_its_snapshot() {
    let snapshot = snapshot_with_secrets();
    let info = RecordingInfo {
        source: "HIDE_program".to_owned(),
        writer: "HIDE_writer".to_owned(),
        epoch_unix_ns: 5000,
        alloc_conf: "garbage_collection_threshold:0.5,HIDE_option:1".to_owned(),
        source_settings: r#"{"HIDE_setting": "HIDE_value"}"#.to_owned(),
        import_notes: vec!["HIDE_note".to_owned()],
        lacks_times: false,
        devices: vec![DeviceInfo { name: "HIDE_device".to_owned(), total_bytes: 7, ..DeviceInfo::default() }],
    };
    let limits = Limits::default();
    let begin = |_: &RecordingInfo| Encoder::new(&info);
    let (encoder, _) = import(&snapshot, "x", &limits, &mut ignore_progress, begin).expect("the snapshot is valid");
    let (original, bytes) = recording_of(encoder);
    let encoder = redact(original.info(), pieces(&bytes), Encoder::new).expect("the recording is valid");
    let (redacted, bytes) = recording_of(encoder);
    check_hidden(&outputs(&redacted, &bytes));
    assert_eq!(redacted.events(), original.events());
    assert_eq!(redacted.info().epoch_unix_ns, 5000);
    assert_eq!(redacted.info().devices[0].total_bytes, 7);
    assert_eq!(redacted.info().devices[0].name, "device_0");
    // Redacting again changes nothing: a placeholder of a placeholder has the same number.
    let again = redact(redacted.info(), pieces(&bytes), Encoder::new).expect("the recording is valid");
    assert_eq!(recording_of(again).1, bytes);
}

#[test]
fn last_header_chunk_is_used() {
    let mut encoder = Encoder::new(&RecordingInfo { source: "HIDE_hub".to_owned(), ..RecordingInfo::default() });
    let device = DeviceInfo { name: "HIDE_gpu".to_owned(), total_bytes: 7, rank: Some(3), ..DeviceInfo::default() };
    encoder.update_info(&RecordingInfo {
        source: "HIDE_program".to_owned(),
        devices: vec![device],
        ..RecordingInfo::default()
    });
    let (original, bytes) = recording_of(encoder);
    let encoder = redact(original.info(), pieces(&bytes), Encoder::new).expect("the recording is valid");
    let (redacted, bytes) = recording_of(encoder);
    check_hidden(&[bytes]);
    let [device] = &redacted.info().devices[..] else { panic!("{:?}", redacted.info()) };
    assert_eq!((device.name.as_str(), device.total_bytes, device.rank), ("device_0", 7, Some(3)));
}

#[test]
fn input_that_is_not_a_recording_is_refused() {
    assert!(redact(&RecordingInfo::default(), pieces(b"something else altogether"), Encoder::new).is_err());
    let broken = FormatError::new(5, "the disk is gone");
    assert_eq!(
        redact(&RecordingInfo::default(), [Err(broken.clone())], Encoder::new).expect_err("a piece is an error"),
        broken
    );
}
