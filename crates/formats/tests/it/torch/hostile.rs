//! Hostile input does not make the reader panic, loop or exceed its limits; errors have a position.

use proptest::prelude::*;
use serde_json::json;
use vramscope_formats::{ImportSummary, Limits, ReadError, ignore_progress, import, unpack};
use vramscope_trace::{MemorySink, NullSink};

use super::common::{import_all, recorded};
use super::pickler::pickled;

/// Limits that keep a failing test from exhausting the machine.
fn tight() -> Limits {
    Limits { max_bytes: 64 << 20, max_unpacked_bytes: 64 << 20, ..Limits::default() }
}

fn read(bytes: &[u8]) -> Result<ImportSummary, ReadError> {
    import(bytes, "hostile", &tight(), &mut ignore_progress, |_| NullSink).map(|(_, imported)| imported)
}

/// Reads input that must be refused, and returns the error.
fn refused(bytes: &[u8]) -> ReadError {
    match read(bytes) {
        Ok(imported) => panic!("accepted: {imported:?}"),
        Err(error) => {
            assert!(error.offset <= bytes.len() as u64, "{error}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            error
        }
    }
}

/// Returns a pickle of protocol 4 with this body.
fn pickle(body: &[u8]) -> Vec<u8> {
    [b"\x80\x04", body, b"."].concat()
}

#[test]
fn every_truncation_is_refused_with_an_offset() {
    let whole = recorded("tiny_inference").expect("the repository contains this snapshot").pickle;
    for len in 0..whole.len() {
        refused(&whole[..len]);
    }
    // Without the frame, whose length reveals the truncation at once.
    let unframed = [&whole[..2], &whole[11..]].concat();
    assert!(read(&unframed).is_ok());
    for len in 0..unframed.len() {
        refused(&unframed[..len]);
    }
}

#[test]
fn flipped_bytes_do_not_panic() {
    let whole = recorded("tiny_inference").expect("the repository contains this snapshot").pickle;
    for at in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            let _ = read(&bytes);
        }
    }
}

#[test]
fn deep_nesting_is_refused() {
    const LEVELS: usize = 200_000;
    // Nested lists as Python writes them, lists opened by marks, nested dictionaries, nested
    // tuples.
    let lists = pickle(&[b"]".repeat(LEVELS), b"a".repeat(LEVELS - 1)].concat());
    let marks = pickle(&[b"(".repeat(LEVELS), b"l".repeat(LEVELS)].concat());
    let dicts = pickle(&[b"}K\x00".repeat(LEVELS), b"}".to_vec(), b"s".repeat(LEVELS)].concat());
    let tuples = pickle(&[b")".to_vec(), b"\x85".repeat(LEVELS)].concat());
    for bytes in [lists, marks, dicts, tuples] {
        assert!(refused(&bytes).message.contains("nested deeper"), "{}", refused(&bytes));
    }
    let json_lists = [b"{\"segments\": ".to_vec(), b"[".repeat(LEVELS)].concat();
    let json_dicts = [b"{\"device_traces\": [[".to_vec(), b"{\"addr\": ".repeat(LEVELS)].concat();
    for bytes in [json_lists, json_dicts] {
        let error = refused(&bytes);
        assert_eq!(error.line_column.map(|(line, _)| line), Some(1), "{error}");
    }
}

#[test]
fn circular_containers_do_not_loop() {
    // l = []; l.append(l), and a dictionary whose device_traces is the dictionary, the list, or the
    // history itself.
    refused(&pickle(b"]\x94h\x00a"));
    refused(&pickle(b"}\x94\x8c\x0ddevice_tracesh\x00s"));
    let itself = read(&pickle(b"}\x94\x8c\x0ddevice_traces]\x94h\x01as")).expect("the history is empty");
    assert_eq!((itself.events, itself.contradictions), (0, 1));
    refused(&pickle(b"}\x94(\x8c\x08segmentsh\x00\x8c\x0ddevice_tracesh\x00u"));
    // An entry whose frames are a list that contains the entry's list.
    let entry = b"}\x94\x8c\x0ddevice_traces]\x94]\x94}(\x8c\x06action\x8c\x05alloc\x8c\x06framesh\x02uaas";
    let _ = read(&pickle(entry));
}

#[test]
fn list_doubled_by_reference_is_not_copied() {
    // l0 = [], l1 = [l0, l0], l2 = [l1, l1], ... 60 times: 2^60 lists if they were copied.
    let mut body = b"}\x8c\x0ddevice_traces]\x94".to_vec();
    for level in 0u8..60 {
        body.extend(b"](");
        body.extend([b'h', level, b'h', level, b'e', 0x94]);
    }
    body.push(b's');
    refused(&pickle(&body));
}

#[test]
fn history_referred_to_many_times_is_not_copied() {
    // A history of 1,000 entries that is referred to a million times.
    let mut body = b"}\x8c\x0ddevice_traces](](".to_vec();
    body.extend(b"}\x8c\x06action\x8c\x05allocs".repeat(1000));
    body.extend(b"e\x94");
    body.extend(b"h\x00".repeat(1_000_000));
    body.extend(b"es");
    assert!(refused(&pickle(&body)).message.contains("more histories than possible devices"));
}

#[test]
fn memory_stays_within_the_limit() {
    let mut body = b"}\x8c\x0ddevice_traces](](".to_vec();
    body.extend(b"}\x8c\x06action\x8c\x05allocs".repeat(4_000_000));
    body.extend(b"ees");
    let error = refused(&pickle(&body));
    assert!(error.message.contains("more memory than the limit"), "{error}");
    // A memo slot with a huge number; a string, bytes, an integer and a frame with a length beyond
    // the end of the file.
    for body in [
        b"}r\xff\xff\xff\x7f".as_slice(),
        b"X\xff\xff\xff\xff",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x8b\xff\xff\xff\x7f",
        b"\x95\xff\xff\xff\xff\xff\xff\xff\xff",
    ] {
        refused(&pickle(body));
    }
}

#[test]
fn pickle_that_names_a_class_is_refused() {
    let cases: [(&[u8], u64, &str); 7] = [
        (b"cos\nsystem\n\x8c\x02ls\x85R", 2, "os.system"),
        (b"\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R", 14, "os.system"),
        (b"(ios\nsystem\n", 3, "os.system"),
        (b"NNR", 4, "calls a function"),
        (b"NNb", 4, "sets the state"),
        (b"\x82\x01", 2, "registered class"),
        (b"\x97", 2, "external buffer"),
    ];
    for (body, offset, what) in cases {
        let error = refused(&pickle(body));
        assert!(error.message.contains(what), "{error}");
        assert_eq!(error.offset, offset, "{error}");
    }
}

#[test]
fn input_that_is_not_a_snapshot_is_refused() {
    for (bytes, what) in [
        (pickle(b"]"), "a pickled list, but not of segments"),
        (pickle(b"](}}e"), "a pickled list, but not of segments"),
        (pickle(b"K\x01"), "a pickle, but not from torch.cuda.memory._dump_snapshot"),
        (pickle(b"}"), "a pickle, but not from torch.cuda.memory._dump_snapshot"),
        (b"{}".to_vec(), "JSON of another program"),
        (b"[]".to_vec(), "JSON of another program"),
        (b"[{}]".to_vec(), "a list, but not of segments"),
        (b"3".to_vec(), "not a vramscope recording"),
        (b"hello".to_vec(), "not a vramscope recording"),
        (b"".to_vec(), "the file is empty"),
        (b"\x89VRAM\r\n\x1a".to_vec(), "already a vramscope recording"),
        (b"\x80\x06N.".to_vec(), "protocol 6"),
    ] {
        let error = refused(&bytes);
        assert!(error.message.contains(what), "{error}");
    }
}

/// A list of entries in the wrong place is not a history, and must not be read as an empty one.
#[test]
fn entries_in_the_wrong_list_are_refused() {
    let entry = json!({"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 1});
    for key in ["device_traces", "segments", "external_annotations"] {
        let snapshot = json!({"segments": [], "device_traces": [], key: [entry]});
        refused(&pickled(&snapshot));
        // In JSON only the position of a dictionary determines what it describes.
        if key == "device_traces" {
            refused(&serde_json::to_vec(&snapshot).expect("the values are plain data"));
        }
    }
}

#[test]
fn json_errors_have_line_and_column() {
    let error =
        refused(b"{\n  \"segments\": [],\n  \"device_traces\": [[{\"action\": \"alloc\", \"addr\": \"x\"}]]\n}");
    assert_eq!(error.line_column.map(|(line, _)| line), Some(3), "{error}");
    assert!(error.to_string().contains("an entry's address is not a 64-bit number"), "{error}");
    assert!(error.to_string().contains("line 3"), "{error}");
    for len in 0..40 {
        refused(&b"{\"device_traces\": [[{\"action\": \"alloc\"}]]}"[..len]);
    }
}

#[test]
fn oversized_integers_are_ignored() {
    let (memory, _) = import_all(
        br#"{"device_traces": [[{"action": "alloc", "addr": 18446744073709551104, "size": 1,
            "stream": 99999999999999999999999,
            "time_us": 5, "more": 1e400000}, {"action": "alloc", "addr": -512, "size": 1}]]}"#,
        "json",
    );
    assert_eq!(memory.events.len(), 2);
    // stream is 2^80, addr the nine bytes of 2^64 - 512.
    let entry = b"}(\x8c\x06action\x8c\x05alloc\x8c\x06stream\x8a\x0b\0\0\0\0\0\0\0\0\0\0\x01\
        \x8c\x04addr\x8a\x09\x00\xfe\xff\xff\xff\xff\xff\xff\x00u";
    let (memory, _) =
        import_all(&pickle(&[b"}\x8c\x0ddevice_traces](](".as_slice(), entry, b"ees"].concat()), "pickle");
    assert_eq!(memory.events.len(), 1);
}

#[test]
fn decompression_stops_at_the_limit() {
    let zeros = vec![0u8; 4 << 20];
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut gzip, &zeros).expect("memory can be written");
    let gzip = gzip.finish().expect("memory can be written");
    let limits = Limits { max_unpacked_bytes: 1 << 20, ..Limits::default() };
    let error = unpack(&gzip, &limits).expect_err("4 MiB of zeros");
    assert!(error.message.contains("more than the limit of 1 MiB"), "{error}");
    let whole = unpack(&gzip, &Limits::default()).expect("the archive is valid");
    assert_eq!(whole.len(), zeros.len());
    for len in (2..gzip.len()).step_by(31) {
        assert!(unpack(&gzip[..len], &Limits::default()).is_err(), "cut at {len}");
    }
    let zstd = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/ring.pickle.zst"))
        .expect("the snapshot can be read");
    assert!(unpack(&zstd, &Limits { max_unpacked_bytes: 1000, ..Limits::default() }).is_err());
    for len in (4..zstd.len()).step_by(31) {
        assert!(unpack(&zstd[..len], &Limits::default()).is_err(), "cut at {len}");
    }
}

/// Concatenated gzip members, with zeros or other bytes at the end.
#[test]
fn gzip_members_are_concatenated_and_zero_padding_is_ignored() {
    let pack = |bytes: &[u8]| {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, bytes).expect("memory can be written");
        gzip.finish().expect("memory can be written")
    };
    let packed = [pack(b"one, "), pack(b""), pack(b"two")].concat();
    assert!(*unpack(&packed, &tight()).expect("the archive is valid") == *b"one, two");
    assert!(*unpack(&[&packed, &[0; 512][..]].concat(), &tight()).expect("the archive is valid") == *b"one, two");
    for rest in [&b"junk"[..], b"\x1f\x8b", b"\0\0x"] {
        assert!(unpack(&[&packed, rest].concat(), &tight()).is_err(), "{rest:?}");
    }
}

#[test]
fn truncated_files_are_reported_with_their_length() {
    let check = |error: ReadError, len: usize| {
        assert!(error.is_truncated(), "{error}");
        assert_eq!(error.to_string(), format!("the file is cut off at byte {len}: save or copy it again"));
    };
    let pickle = recorded("tiny_inference").expect("the repository contains this snapshot").pickle;
    let unframed = [&pickle[..2], &pickle[11..]].concat();
    let json = br#"{"device_traces": [[{"action": "alloc", "addr": 512}]]}"#;
    for whole in [&unframed[..], json] {
        for len in [2, whole.len() / 2, whole.len() - 1] {
            check(refused(&whole[..len]), len);
        }
    }
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &pickle).expect("memory can be written");
    let gzip = gzip.finish().expect("memory can be written");
    let zstd = zstd::bulk::compress(&pickle, 3).expect("compression in memory does not fail");
    for whole in [gzip, zstd] {
        for len in [5, whole.len() / 2, whole.len() - 1] {
            let error = unpack(&whole[..len], &tight()).expect_err("the file is cut off");
            assert!(std::error::Error::source(&error).is_some());
            check(error, len);
        }
    }
}

#[test]
fn skippable_zstd_frames_are_skipped() {
    let whole = recorded("tiny_inference").expect("the repository contains this snapshot").pickle;
    let pack = |bytes: &[u8]| zstd::bulk::compress(bytes, 3).expect("memory can be written");
    let (first, second) = whole.split_at(whole.len() / 2);
    // pzstd writes a skippable frame before each of its frames, and some tools write an index after
    // the last one.
    let other = |low: u8, text: &[u8]| [&[0x50 | low, 0x2a, 0x4d, 0x18, text.len() as u8, 0, 0, 0], text].concat();
    let packed = [other(0, b"size"), pack(first), other(7, b""), other(15, b"x"), pack(second), other(14, b"index")];
    assert!(*unpack(&packed.concat(), &tight()).expect("the archive is valid") == whole[..]);
    assert!(unpack(&packed[..3].concat(), &tight()).is_ok_and(|unpacked| *unpacked == *first));
    // Without packed data after them, or cut off, skippable frames are unknown bytes.
    for bytes in [&packed[0][..], &packed[0][..5], &packed[0][..9]] {
        assert!(unpack(bytes, &tight()).is_ok_and(|unpacked| *unpacked == *bytes));
    }
}

fn instructions() -> impl Strategy<Value = Vec<u8>> {
    let names =
        ["segments", "device_traces", "action", "alloc", "addr", "frames", "blocks", "name", "filename", "line"];
    let text =
        prop::sample::select(names.to_vec()).prop_map(|name| [&[0x8c, name.len() as u8], name.as_bytes()].concat());
    let plain =
        prop::sample::select(b"(]})eulatds012N\x94\x85\x86\x87\x8f\x90\x91".to_vec()).prop_map(|byte| vec![byte]);
    let memo = (prop::sample::select(b"hq".to_vec()), 0u8..12).prop_map(|(opcode, place)| vec![opcode, place]);
    let number = any::<u8>().prop_map(|byte| vec![b'K', byte]);
    prop::collection::vec(prop_oneof![3 => plain, 2 => text, 1 => memo, 1 => number], 0..200)
        .prop_map(|instructions| pickle(&instructions.concat()))
}

proptest! {
    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = read(&bytes);
        let _ = read(&pickle(&bytes));
        let _ = unpack(&bytes, &tight());
        let _ = unpack(&[b"\x1f\x8b\x08", bytes.as_slice()].concat(), &tight());
        let _ = unpack(&[b"\x28\xb5\x2f\xfd", bytes.as_slice()].concat(), &tight());
    }

    #[test]
    fn random_instructions_do_not_panic(bytes in instructions()) {
        let _ = read(&bytes);
    }

    /// Any history is imported completely, with one event for each entry.
    #[test]
    fn arbitrary_histories_are_imported(
        entries in prop::collection::vec((0usize..10, 0u64..64, 0u64..9, any::<i32>()), 0..200),
        segments in prop::collection::vec((0u64..64, 1u64..9, any::<bool>()), 0..4),
    ) {
        let actions = ["alloc", "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
            "segment_map", "segment_unmap", "oom", "new"];
        let entry = |&(action, address, size, time): &(usize, u64, u64, i32)| serde_json::json!({
            "action": actions[action], "addr": address << 19, "size": size << 19, "stream": 0, "time_us": time,
        });
        let segment = |&(address, size, expandable): &(u64, u64, bool)| serde_json::json!({
            "device": 0, "address": address << 19, "total_size": size << 19, "stream": 0, "segment_type": "large",
            "is_expandable": expandable,
            "blocks": [{"size": 1 << 19, "state": "active_allocated"}, {"size": 1 << 19, "state": "inactive"}],
        });
        let json = serde_json::json!({
            "segments": segments.iter().map(segment).collect::<Vec<_>>(),
            "device_traces": [entries.iter().map(entry).collect::<Vec<_>>()],
        });
        let bytes = serde_json::to_vec(&json).expect("the values are plain data");
        let imported = import(&bytes, "", &tight(), &mut ignore_progress, |_| MemorySink::default());
        let (memory, imported) = imported.expect("any history can be imported");
        prop_assert_eq!(memory.events.len(), entries.len());
        prop_assert_eq!(imported.events, entries.len() as u64);
    }
}
