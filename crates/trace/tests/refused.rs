//! Bytes that no writer wrote: what they say is refused, and what came before them stays.

#[allow(dead_code, reason = "each file of tests uses a part")]
mod common;

use common::{chunk, column, program, varint};
use vramscope_trace::{DeviceId, Encoder, Info, Recording, Replay, Sink};

/// A chunk that says that its events fit, and whose last does not: it allocates a block and then frees one that is not there.
fn liar(first_event: u64) -> Vec<u8> {
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
fn a_damaged_chunk_leaves_nothing_behind() {
    let events = program(20_000, 5);
    let mut encoder = Encoder::new(&Info::default());
    events.iter().for_each(|event| encoder.event(event));
    encoder.flush();
    let whole: Vec<u8> = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect();
    let mut expected = Recording::new();
    expected.push(&whole).unwrap();
    for piece in [1 << 20, 777] {
        let mut recording = Recording::new();
        let bytes = [whole.clone(), liar(20_000)].concat();
        let result = bytes.chunks(piece).try_for_each(|bytes| recording.push(bytes));
        assert!(result.unwrap_err().to_string().contains("fit"));
        assert_eq!(recording.events(), 20_000);
        assert_eq!(recording.end_state(), expected.end_state());
        assert_eq!(recording.taken_bytes(), whole.len() as u64);
        assert_eq!(recording.definitions(), expected.definitions());
        assert_eq!(recording.end_ns(), expected.end_ns());
        let series = |recording: &Recording| recording.series(DeviceId(0)).map(|series| series.columns(0, 1 << 20, 50));
        assert_eq!(series(&recording), series(&expected));
        assert_eq!(Replay::new().seek(&recording, 20_000).unwrap(), expected.end_state());
    }
}

/// A few bytes that stand for very many are refused before anything is made of them.
#[test]
fn small_files_do_not_become_large() {
    let head = Encoder::new(&Info::default()).take_output().remove(0).bytes;
    let refused = |chunk: Vec<u8>| {
        let mut recording = Recording::new();
        recording.push(&head).unwrap();
        recording.push(&chunk).unwrap_err().to_string()
    };
    let device = [vec![0, 0, 0, 0, 0], varint(0), varint(2 << 20)].concat();
    let state = chunk(4, 0, 0, &[vec![0, 0, 1], column(0, &device)].concat());
    assert!(refused(state).contains("more segments and blocks"));
    // Zeros by LZ4: a literal, a match as long as can be, an end of five literals.
    let mut packed = vec![0x1f, 0, 1, 0];
    packed.extend([255; 4000]);
    packed.extend([0, 0x50, 0, 0, 0, 0, 0]);
    let raw_len = 1 + 4 + 15 + 255 * 4000 + 5u64;
    let lengths = [vec![0, 1], varint(raw_len), varint(packed.len() as u64), packed].concat();
    assert!(refused(chunk(2, 0, 0, &[vec![0; 4], lengths].concat())).contains("more bytes than their chunk may have"));
}
