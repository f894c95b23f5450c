//! A small file cannot cause more work than its length justifies. Each case refers to one container
//! or text many times; its outcome shows that every step is charged, without measuring time.

use vramscope_formats::{ImportSummary, Limits, ReadError, ignore_progress, import};
use vramscope_trace::NullSink;

use super::common::import_all;

fn read(bytes: &[u8]) -> Result<ImportSummary, ReadError> {
    import(bytes, "amplification", &Limits::default(), &mut ignore_progress, |_| NullSink).map(|(_, imported)| imported)
}

/// Returns a pickle of protocol 4 with this body.
fn pickle(body: &[u8]) -> Vec<u8> {
    [b"\x80\x04", body, b"."].concat()
}

/// Returns a pickle whose allocator settings are a list with `references` to one dictionary of
/// `pairs` pairs, whose keys are no texts.
fn settings_without_text_keys(pairs: usize, references: usize) -> Vec<u8> {
    let mut body = b"}(\x8c\x08segments]\x8c\x12allocator_settings}\x8c\x01k](}\x94(".to_vec();
    body.extend(b"NN".repeat(pairs));
    body.push(b'u');
    body.extend(b"h\x00".repeat(references - 1));
    body.extend(b"esu");
    pickle(&body)
}

#[test]
fn settings_pairs_without_text_keys_are_charged() {
    // The settings' limit is 32 KiB; each value and each pair counts for 32 bytes of it.
    let check = |pairs, references, contradictions| {
        let imported = read(&settings_without_text_keys(pairs, references)).expect("settings are optional");
        assert_eq!(imported.contradictions, contradictions, "{pairs} pairs, {references} references");
    };
    check(100, 1, 0);
    check(1000, 1, 0);
    check(1100, 1, 1);
    check(100, 9, 0);
    check(100, 11, 1);
    check(1_000_000, 1000, 1);
}

/// Returns a pickle with one segment, whose list of blocks has the items that `blocks` pushes.
fn with_blocks(blocks: &[u8]) -> Vec<u8> {
    let segment = b"}\x8c\x08segments](}(\x8c\x07addressJ\0\0\0\x10\x8c\x0atotal_sizeJ\0\0\0\x10\
        \x8c\x06deviceK\0\x8c\x06blocks](";
    pickle(&[segment.as_slice(), blocks, b"eues"].concat())
}

#[test]
fn rows_that_are_referred_to_many_times_are_refused() {
    let pickle = |keys: usize, references: usize| {
        let block = [b"}\x94(".as_slice(), &b"NN".repeat(keys), b"u"].concat();
        with_blocks(&[block, b"h\x00".repeat(references - 1)].concat())
    };
    read(&pickle(200, 2)).expect("two references are within the file's length");
    for (keys, references) in [(200, 1000), (20_000, 1000), (200, 1_000_000)] {
        let error = read(&pickle(keys, references)).expect_err("more rows than the file's length justifies");
        assert!(error.message.contains("used too many times"), "{error}");
    }
}

#[test]
fn history_of_a_block_is_read_once() {
    // A block with 10,000 times the key `history`, whose value is one list of a large dictionary.
    let newest = [b"](}(".as_slice(), &b"NN".repeat(10_000), b"ue\x94"].concat();
    let repeated = b"h\x00h\x01".repeat(10_000);
    let block = [b"}(\x8c\x07history\x94".as_slice(), &newest, &repeated, b"u"].concat();
    read(&with_blocks(&block)).expect("the last value of a key counts");
}

/// In JSON the last of several equal keys counts, and its rows replace those before it.
#[test]
fn repeated_json_keys_replace_the_rows_of_each_kind() {
    let segment = |address: u64| format!(r#"{{"device":0,"address":{address},"total_size":512,"stream":0}}"#);
    let text = format!(
        r#"{{"host_segments":[{}],"segments":[{}],"segments":[{},{}],"host_segments":[{}],"segments":[{}]}}"#,
        segment(512),
        segment(1024),
        segment(2048),
        segment(4096),
        segment(8192),
        segment(16384),
    );
    let (memory, _) = import_all(text.as_bytes(), "json");
    let (_, state) = memory.states.last().expect("the import ends with a full state");
    let addresses: Vec<u64> =
        state.devices().flat_map(|(_, device)| device.segments().map(|segment| segment.address)).collect();
    assert_eq!(addresses, [16384, 8192]);
}
