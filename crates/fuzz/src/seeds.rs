//! What fuzzing begins with: the repository's recordings, as far as they are small, and small ones of every kind of event.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use vramscope_formats::{Limits, export, import, unpack};
use vramscope_trace::Recording;

use crate::random::Random;
use crate::{events, sketch};

/// Larger seeds are cut: a fuzzer is as fast as its inputs are short.
const MAX_SEED_LEN: usize = 64 << 10;
/// Made up histories, and bytes of each.
const HISTORIES: [usize; 5] = [12, 60, 200, 700, 2000];

/// The snapshots of `tests/data`, as their files are.
fn snapshots() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.to_string_lossy().contains(".pickle"));
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).expect("a recording of the repository can be read")).collect()
}

fn unpacked(file: &[u8]) -> Vec<u8> {
    unpack(file, &Limits::default()).map(Cow::into_owned).expect("a recording of the repository unpacks")
}

/// Bytes that are a history, see [`events`].
fn histories() -> Vec<Vec<u8>> {
    let of_length = |(seed, &length): (usize, &usize)| {
        let mut random = Random::new(seed as u64 * 2 + 77);
        // Kinds from 0, in the first third of what a byte may say, are of one device.
        let byte = || {
            let bound = if random.below(3) == 0 { 256 } else { 60 };
            random.below(bound) as u8
        };
        std::iter::repeat_with(byte).take(length).collect()
    };
    HISTORIES.iter().enumerate().map(of_length).collect()
}

/// Small recordings: of made up histories, and of the smallest snapshots.
pub(crate) fn recordings() -> Vec<Vec<u8>> {
    let made_up = histories().into_iter().map(|history| events::encode(&history).0);
    let imported = snapshots().into_iter().filter_map(|file| {
        let snapshot = unpacked(&file);
        (snapshot.len() < MAX_SEED_LEN).then(|| {
            let begin = vramscope_trace::Encoder::new;
            let imported = import(&snapshot, "seed", &Limits::default(), &mut |_, _| {}, begin);
            let (mut encoder, _) = imported.expect("a recording of the repository is sound");
            encoder.flush();
            encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect()
        })
    });
    made_up.chain(imported).collect()
}

fn opened(bytes: &[u8]) -> Recording {
    let mut recording = Recording::new();
    recording.push(bytes).expect("what an encoder wrote is sound");
    recording
}

/// Whole files.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let indexed = |bytes: Vec<u8>| {
        let index = opened(&bytes).index().into_iter().flat_map(|chunk| chunk.bytes);
        bytes.iter().copied().chain(index).collect()
    };
    recordings().into_iter().map(indexed).collect()
}

/// Sketches, packed in every way.
pub(crate) fn sketches() -> Vec<Vec<u8>> {
    let ways = [0, 0b1000, 0b0001, 0b1111, 0b10110];
    files().iter().zip(ways.into_iter().cycle()).map(|(file, how)| sketch::of(file, how)).collect()
}

/// Sketches with the byte before that says what is done with them.
pub(crate) fn sketches_and_histories() -> Vec<Vec<u8>> {
    let sketches = sketches().into_iter().map(|sketch| [vec![0], sketch].concat());
    sketches.chain(histories().into_iter().map(|history| [vec![1], history].concat())).collect()
}

/// Indices of the recordings.
pub(crate) fn indices() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, recording) in recordings().iter().enumerate() {
        let index = opened(recording).index().into_iter().flat_map(|chunk| chunk.bytes).collect::<Vec<u8>>();
        let payload = sketch::index_payload(&index).expect("an index");
        for how in [0, 0b1000_0000, 0b1100_1010] {
            seeds.push([vec![number as u8, how], sketch::of_payload(sketch::INDEX, &payload)].concat());
        }
    }
    seeds
}

/// The bytes of histories, one after the other.
pub(crate) fn history_bytes() -> Vec<Vec<u8>> {
    histories()
}

/// Pickles: small ones that were exported, and the beginnings of real ones.
pub(crate) fn pickles() -> Vec<Vec<u8>> {
    let exported = recordings().into_iter().filter_map(|bytes| {
        let mut pickle = Vec::new();
        export::memory_viz_pickle(&opened(&bytes), &mut pickle, &mut |_, _| {}).ok().map(|()| pickle)
    });
    let real = snapshots().into_iter().map(|file| unpacked(&file));
    let written: [&[u8]; 3] = [
        b"\x80\x02}q\0(X\x08\0\0\0segmentsq\x01]q\x02X\x0d\0\0\0device_tracesq\x03]q\x04]q\x05}q\x06(X\x06\0\0\0actionq\x07X\x05\0\0\0allocX\x04\0\0\0addrJ\0\x10\0\0X\x04\0\0\0sizeK\x08uaau.",
        b"\x80\x04\x95\x20\0\0\0\0\0\0\0}\x94\x8c\x08segments\x94]\x94}\x94(\x8c\x07address\x94\x8a\x08\0\0\0\0\0\x7f\0\0ua\x8c\x01x\x94\x88\x8c\x01y\x94G?\xf0\0\0\0\0\0\0s.",
        b"\x80\x05\x8c\x0bcollections\x8c\x0bOrderedDict\x93)R\x8f(K\x01K\x02\x90\x91N\x85\x86\x87\x96\x02\0\0\0\0\0\0\0ab\x97\x98.",
    ];
    cut(exported.chain(real).chain(written.into_iter().map(<[u8]>::to_vec)))
}

/// JSON: what was exported.
pub(crate) fn jsons() -> Vec<Vec<u8>> {
    let exported = recordings().into_iter().filter_map(|bytes| {
        let mut json = Vec::new();
        export::memory_viz_json(&opened(&bytes), &mut json, &mut |_, _| {}).ok().map(|()| json)
    });
    let odd: [&[u8]; 2] = [
        br#"{"device_traces": [[{"action": "alloc", "addr": 18446744073709551104, "size": 1, "stream": 99999999999999999999999, "time_us": 5, "more": 1e400, "frames": [{"name": "f", "filename": "\ud83d\ude00", "line": -3}]}]], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "a:b", "roundup_power2_divisions": {"1": 2}}}"#,
        br#"[{"device": 0, "address": 1, "total_size": 3, "stream": 0, "segment_pool_id": [1, 2], "segment_type": "large", "is_expandable": true, "blocks": [{"size": 2, "requested_size": 1, "state": "active_pending_free", "history": [{"addr": 1, "real_size": 1}]}]}]"#,
    ];
    cut(exported.chain(odd.into_iter().map(<[u8]>::to_vec)))
}

/// What is imported, exported and imported again, three times over, and so had better be small.
pub(crate) fn round_trips() -> Vec<Vec<u8>> {
    const MAX_LEN: usize = 8 << 10;
    jsons().into_iter().chain(histories()).filter(|seed| seed.len() <= MAX_LEN).collect()
}

/// RMM's logs.
pub(crate) fn rmm_logs() -> Vec<Vec<u8>> {
    let lines = "Thread,Time,Action,Pointer,Size,Stream\n";
    [
        "1,00:00:00.1,allocate,0x1000,1000,0x0\n1,00:00:00.2,free,0x1000,1000,0x0\n",
        "1,1700000000.5,allocate,0x1400,1000,0x1\r\n1,1700000001,allocate failure,0x0,99999999999,0x0\r\n",
        "1,23:59:59.999999,allocate,0xe00,4096,0x7f0000000000\n2,00:00:00,free,0xe00,4096,0x2,more\n",
        "1,00:00:00,allocate,0xffffffffffffff00,256,0\nThread,Time,Action,Pointer,Size,Stream\n\n\"1\",x,free,(nil),0,0\n",
    ]
    .iter()
    .map(|log| [lines, log].concat().into_bytes())
    .collect()
}

/// Packed files.
pub(crate) fn packed() -> Vec<Vec<u8>> {
    let mut seeds = snapshots();
    seeds.push(zstd::bulk::compress(&vec![0; 6 << 20], 1).expect("memory is packed into memory"));
    seeds.extend(
        files().iter().take(4).map(|file| zstd::bulk::compress(file, 1).expect("memory is packed into memory")),
    );
    seeds.retain(|seed| seed.len() <= MAX_SEED_LEN);
    seeds
}

/// Settings.
pub(crate) fn confs() -> Vec<Vec<u8>> {
    [
        "expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.8",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],max_non_split_rounding_mb:20",
        "backend:native,roundup_power2_divisions:16,per_process_memory_fraction:0.5, large_segment_size_mb : 32",
        "pinned_use_background_threads:True,pinned_num_register_threads:4,release_lock_on_cudamalloc:False",
    ]
    .map(|conf| conf.as_bytes().to_vec())
    .to_vec()
}

/// Fragments of the page's address.
pub(crate) fn links() -> Vec<Vec<u8>> {
    ["#event=5&from=0&to=18446744073709551615&device=3&select=0x7f00&color=site", "outside=shown&others=hidden"]
        .map(|link| link.as_bytes().to_vec())
        .to_vec()
}

fn cut(seeds: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    seeds
        .map(|mut seed| {
            seed.truncate(MAX_SEED_LEN);
            seed
        })
        .collect()
}
