//! Crafted bytes are rejected, and items decoded before them stay valid.

use vramscope_trace::{DeviceId, Encoder, Recording, RecordingInfo, Replay, Sink};

use crate::common::{chunk, column, program, varint};

/// Returns a chunk that is marked as consistent although its last event is not: it allocates a
/// block and then frees one that does not exist.
fn inconsistent_chunk(first_event: u64) -> Vec<u8> {
    let segment = [vec![0, 0], varint(2 * (1 << 41)), varint(2 * 4096), vec![0, 0, 0]].concat();
    let columns = [
        column(0, &[4, 0, 2]),
        column(1, &[0, 1, 1]),
        column(3, &[0]),
        column(4, &[0]),
        column(5, &varint(2 * (1 << 41))),
        column(6, &[0]),
        column(7, &[0]),
        column(8, &[0, 2]),
        column(9, &[0]),
        column(10, &[0, 0, 0, 2, 0]),
        column(11, &segment),
    ];
    chunk(3, first_event, 3, &[varint(1_000_000), vec![1, 2], columns.concat()].concat())
}

#[test]
fn damaged_chunk_has_no_effect() {
    let events = program(20_000, 5);
    let mut encoder = Encoder::new(&RecordingInfo::default());
    events.iter().for_each(|event| encoder.event(event));
    encoder.flush();
    let whole: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let mut expected = Recording::new();
    expected.push(&whole).unwrap();
    for piece in [1 << 20, 777] {
        let mut recording = Recording::new();
        let bytes = [whole.clone(), inconsistent_chunk(20_000)].concat();
        let result = bytes.chunks(piece).try_for_each(|bytes| recording.push(bytes));
        assert!(result.unwrap_err().to_string().contains("consistent"));
        assert_eq!(recording.events(), 20_000);
        assert_eq!(recording.end_state(), expected.end_state());
        assert_eq!(recording.complete_bytes(), whole.len() as u64);
        assert_eq!(recording.definitions(), expected.definitions());
        assert_eq!(recording.end_ns(), expected.end_ns());
        let series = |recording: &Recording| recording.series(DeviceId(0)).map(|series| series.columns(0, 1 << 20, 50));
        assert_eq!(series(&recording), series(&expected));
        assert_eq!(Replay::new().seek(&recording, 20_000).unwrap(), expected.end_state());
    }
}

/// Small inputs that claim a huge decompressed size are rejected before anything is allocated.
#[test]
fn decompression_bombs_are_rejected() {
    let header = Encoder::new(&RecordingInfo::default()).take_output().remove(0).bytes;
    let rejection = |chunk: Vec<u8>| {
        let mut recording = Recording::new();
        recording.push(&header).unwrap();
        recording.push(&chunk).unwrap_err().to_string()
    };
    let device = [vec![0, 0, 0, 0, 0], varint(0), varint(2 << 20)].concat();
    let state = chunk(4, 0, 0, &[vec![0, 0, 1], column(0, &device)].concat());
    assert!(rejection(state).contains("more segments and blocks"));
    // Zeros compressed by LZ4: a literal, the longest possible match, and five literals at the end.
    let mut packed = vec![0x1f, 0, 1, 0];
    packed.extend([255; 4000]);
    packed.extend([0, 0x50, 0, 0, 0, 0, 0]);
    let raw_len = 1 + 4 + 15 + 255 * 4000 + 5u64;
    let lengths = [vec![0, 1], varint(raw_len), varint(packed.len() as u64), packed].concat();
    assert!(
        rejection(chunk(2, 0, 0, &[vec![0; 4], lengths].concat())).contains("more bytes than their chunk may have")
    );
}
