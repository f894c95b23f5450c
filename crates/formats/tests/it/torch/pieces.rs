//! Files that arrive in pieces: the pieces do not change the result, and the caller can stop.

use std::ops::ControlFlow;

use serde_json::json;
use vramscope_formats::{
    ImportPhase, ImportProgress, ImportSummary, Importer, InputFormat, Limits, ReadError, ignore_progress, import,
};
use vramscope_trace::{MemorySink, NullSink};

use super::common::{import_all, recorded};
use super::pickler::pickled;

/// Imports a file that arrives in pieces of this size.
fn import_pieces(file: &[u8], piece: usize) -> Result<(MemorySink, ImportSummary), ReadError> {
    let mut importer = Importer::new(&Limits::default(), Some(file.len() as u64));
    file.chunks(piece).try_for_each(|piece| importer.push(piece))?;
    importer.finish()?.write("pieces", &mut ignore_progress, |_| MemorySink::default())
}

/// Compares an import in pieces with the import of the whole file.
fn check(file: &[u8], expected: &(MemorySink, ImportSummary), piece: usize) {
    let (memory, summary) = import_pieces(file, piece).unwrap_or_else(|error| panic!("pieces of {piece}: {error}"));
    assert_eq!(memory.events, expected.0.events, "pieces of {piece}");
    assert_eq!(memory.definitions, expected.0.definitions, "pieces of {piece}");
    assert_eq!(memory.annotations, expected.0.annotations, "pieces of {piece}");
    assert_eq!(memory.states, expected.0.states, "pieces of {piece}");
    assert_eq!(summary.info.import_notes, expected.1.info.import_notes, "pieces of {piece}");
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, bytes).expect("memory can be written");
    gzip.finish().expect("memory can be written")
}

#[test]
fn pieces_of_any_size_give_the_same_events() {
    for name in ["ring", "graphs"] {
        let pickle = recorded(name).expect("the repository contains this snapshot").pickle;
        let expected = import_all(&pickle, "pieces");
        let zstd = zstd::bulk::compress(&pickle, 3).expect("compression in memory does not fail");
        let skippable = [b"\x5e\x2a\x4d\x18\x03\0\0\0abc".as_slice(), &zstd].concat();
        let (first, second) = pickle.split_at(pickle.len() / 3);
        let members = [gzip(first), gzip(second), vec![0; 512]].concat();
        for file in [&pickle, &zstd, &skippable, &members] {
            for piece in [1, 11, 4096, 1 << 17, usize::MAX] {
                check(file, &expected, piece);
            }
        }
    }
}

/// A text longer than the bytes that are kept for the next instruction.
#[test]
fn long_texts_may_arrive_in_pieces() {
    let text = "a long note ".repeat(20_000);
    let entry = b"}(\x8c\x06action\x8c\x08annotate\x8c\x0duser_metadataX";
    let body = [
        b"\x80\x04}\x8c\x0ddevice_traces](](".as_slice(),
        entry,
        &(text.len() as u32).to_le_bytes(),
        text.as_bytes(),
        b"uees.",
    ]
    .concat();
    let expected = import_all(&body, "pieces");
    assert_eq!(expected.0.events.len(), 1);
    for piece in [1000, 65_536, 100_000] {
        check(&body, &expected, piece);
    }
    for len in [100, body.len() / 2, body.len() - 1] {
        let error = import_pieces(&body[..len], 1000).expect_err("the pickle is cut off");
        assert!(error.is_truncated(), "{error}");
        assert_eq!(error.offset, len as u64);
    }
}

#[test]
fn json_and_logs_may_arrive_in_pieces() {
    let json = br#"{"device_traces": [[{"action": "alloc", "addr": 512, "size": 512, "time_us": 5}]]}"#;
    let log = b"Thread,Time,Action,Pointer,Size,Stream\n1,12:00:00.5,allocate,0x7f00,256,0x0\n";
    for file in [&json[..], log] {
        let expected = import_all(file, "pieces");
        for packed in [file.to_vec(), gzip(file)] {
            for piece in [1, 7, 1000] {
                check(&packed, &expected, piece);
            }
        }
    }
}

#[test]
fn recordings_and_unknown_files_are_kept_unpacked() {
    let file = |bytes: &[u8]| {
        let mut importer = Importer::new(&Limits::default(), None);
        bytes.chunks(3).for_each(|piece| importer.push(piece).expect("the file is valid"));
        importer.finish().expect("the file is complete")
    };
    let recording = b"\x89VRAM\r\n\x1a and more";
    for bytes in [recording.to_vec(), gzip(recording)] {
        assert_eq!(file(&bytes).format(), Some(InputFormat::Recording));
        assert_eq!(file(&bytes).into_bytes(), recording);
    }
    for bytes in [&b""[..], b"\x80", b"\x28\xb5", b"\x5e\x2a\x4d\x18\x09\0\0\0", b"hello"] {
        assert_eq!(file(bytes).format(), None);
        assert_eq!(file(bytes).into_bytes(), bytes);
    }
}

#[test]
fn progress_goes_through_all_phases() {
    let pickle = recorded("ring").expect("the repository contains this snapshot").pickle;
    let mut seen = Vec::<ImportProgress>::new();
    let mut progress = |progress: &ImportProgress| {
        seen.push(*progress);
        ControlFlow::Continue(())
    };
    let (_, summary) =
        import(&pickle, "ring", &Limits::default(), &mut progress, |_| NullSink).expect("the snapshot is valid");
    assert!(seen.is_sorted_by_key(|progress| progress.fraction));
    assert!(seen.is_sorted_by_key(|progress| progress.phase));
    for phase in [ImportPhase::Reading, ImportPhase::Rebuilding, ImportPhase::Writing] {
        assert!(seen.iter().any(|progress| progress.phase == phase), "{phase:?}");
    }
    let last = seen.last().expect("progress is reported");
    assert_eq!((last.fraction, last.entries, last.read_bytes), (1.0, summary.events, pickle.len() as u64));
}

#[test]
fn every_phase_can_be_stopped() {
    let entry = |number: u64| {
        json!({"action": "alloc", "addr": number * 512, "size": 512, "stream": 0, "time_us": number,
            "frames": [{"name": "f".repeat(80), "filename": "a.py", "line": number}]})
    };
    let snapshot = json!({"segments": [], "device_traces": [(0..40_000).map(entry).collect::<Vec<_>>()]});
    let pickle = pickled(&snapshot);
    let json = serde_json::to_vec(&snapshot).expect("the values are plain data");
    let mut log = b"Thread,Time,Action,Pointer,Size,Stream\n".to_vec();
    log.extend(b"1,12:00:00.5,allocate,0x7f00,256,0x0\n".repeat(1 << 17));
    for (file, phases) in [
        (&pickle, &[ImportPhase::Reading, ImportPhase::Rebuilding, ImportPhase::Writing][..]),
        (&json, &[ImportPhase::Reading, ImportPhase::Rebuilding, ImportPhase::Writing]),
        (&log, &[ImportPhase::Reading, ImportPhase::Writing]),
    ] {
        for &phase in phases {
            let mut reached = false;
            let mut progress = |progress: &ImportProgress| {
                assert!(!reached, "a stopped import reports no progress");
                reached = progress.phase == phase;
                if reached { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let error = import(file, "stopped", &Limits::default(), &mut progress, |_| NullSink)
                .expect_err("the import is stopped");
            assert!(error.is_cancelled() && reached, "{phase:?}: {error}");
            assert_eq!(error.to_string(), "the import was cancelled");
        }
    }
}
