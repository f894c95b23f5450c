//! The seeds of all targets: small recordings of the repository, and generated recordings with
//! every kind of event.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use vramscope_formats::{Limits, export, ignore_progress, import, unpack};
use vramscope_trace::Encoder;

use crate::exports::SnapshotExport;
use crate::random::Random;
use crate::recording_bytes::{encoded, index_of, read_encoded};
use crate::{history_input, structured_input};

/// Maximum length of a seed, in bytes. Longer seeds are cut, because short inputs run faster.
const MAX_SEED_LEN: usize = 64 << 10;
/// Lengths of the inputs for generated histories, in bytes.
const HISTORIES: [usize; 5] = [12, 60, 200, 700, 2000];

/// Returns the files of the snapshots in `tests/data`.
fn snapshots() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.to_string_lossy().contains(".pickle"));
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).expect("a snapshot of the repository can be read")).collect()
}

/// Returns the contents of a compressed snapshot of the repository.
fn unpacked(file: &[u8]) -> Vec<u8> {
    unpack(file, &Limits::default()).map(Cow::into_owned).expect("a snapshot of the repository can be unpacked")
}

/// Generates inputs for [`history_input`], one of each length in [`HISTORIES`].
pub(crate) fn histories() -> Vec<Vec<u8>> {
    let generate = |(seed, &length): (usize, &usize)| {
        let mut random = Random::new(seed as u64 * 2 + 77);
        // Codes in the lower part of the range select one device.
        let byte = || {
            let bound = if random.below(3) == 0 { 256 } else { 60 };
            random.below(bound) as u8
        };
        std::iter::repeat_with(byte).take(length).collect()
    };
    HISTORIES.iter().enumerate().map(generate).collect()
}

/// Returns small recordings: of generated histories, and of the smallest snapshots.
pub(crate) fn recordings() -> Vec<Vec<u8>> {
    let generated = histories().into_iter().map(|history| history_input::encode(&history).0);
    let imported = snapshots().into_iter().filter_map(|file| {
        let snapshot = unpacked(&file);
        (snapshot.len() < MAX_SEED_LEN).then(|| {
            let imported = import(&snapshot, "seed", &Limits::default(), &mut ignore_progress, Encoder::new);
            encoded(imported.expect("a snapshot of the repository is valid").0)
        })
    });
    generated.chain(imported).collect()
}

/// Returns recordings as files, with their index.
pub(crate) fn files() -> Vec<Vec<u8>> {
    let indexed = |bytes: &Vec<u8>| [bytes.as_slice(), &index_of(&read_encoded(bytes))].concat();
    recordings().iter().map(indexed).collect()
}

/// Returns structured inputs with all combinations of packing.
pub(crate) fn structured_inputs() -> Vec<Vec<u8>> {
    let packings = [0, 0b1000, 0b0001, 0b1111, 0b10110];
    let files = files().into_iter().zip(packings.into_iter().cycle());
    files.map(|(file, packing)| structured_input::from_recording(&file, packing)).collect()
}

/// Returns structured inputs and histories, with a first byte that selects the settings of the
/// rerun.
pub(crate) fn rerun_inputs() -> Vec<Vec<u8>> {
    let inputs = structured_inputs().into_iter().map(|input| [vec![0], input].concat());
    inputs.chain(histories().into_iter().map(|history| [vec![1], history].concat())).collect()
}

/// Returns inputs of the target `autopsy`: programs that run out of memory, and recordings.
pub(crate) fn failing_programs() -> Vec<Vec<u8>> {
    // A leak: training steps that keep 2 or 4 MiB each.
    let leak = [0x60, 127, 0x60, 63, 4, 0, 5, 0, 7, 0x1f, 7, 0x1f, 7, 0x1f, 0x60, 255];
    // Blocks of 8 MiB of which some are freed, then requests of 32 MiB on two streams.
    let fragmented = [0x60, 255, 7, 7, 4, 0, 4, 2, 20, 4, 20, 1, 0xf0, 1, 0xf0, 1, 6, 0, 0xf1, 1, 0x60, 9, 0xf0, 1];
    let mut seeds = Vec::new();
    for program in [leak.as_slice(), fragmented.as_slice()] {
        seeds.extend([0u8, 4, 8, 12, 16].map(|choice| [&[choice], program].concat()));
    }
    seeds.extend(structured_inputs().into_iter().map(|input| [vec![2], input].concat()));
    seeds.extend(histories().into_iter().map(|history| [vec![3], history].concat()));
    seeds
}

/// Returns the indexes of the recordings as structured inputs.
pub(crate) fn indices() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (number, recording) in recordings().iter().enumerate() {
        let index = index_of(&read_encoded(recording));
        let payload = structured_input::index_payload(&index).expect("the recording has an index");
        let input = structured_input::from_payload(structured_input::INDEX, &payload);
        let packed = |packing| [&[number as u8, packing], input.as_slice()].concat();
        seeds.extend([0, 0b1000_0000, 0b1100_1010].map(packed));
    }
    seeds
}

/// Exports recordings by `export`, and leaves out those that the format cannot express.
fn exported(export: SnapshotExport) -> impl Iterator<Item = Vec<u8>> {
    recordings().into_iter().filter_map(move |bytes| {
        let mut snapshot = Vec::new();
        export(&read_encoded(&bytes), &mut snapshot, &mut |_, _| {}).ok().map(|()| snapshot)
    })
}

/// Returns pickles: small exported ones, and the beginnings of real ones.
pub(crate) fn pickles() -> Vec<Vec<u8>> {
    let exported = exported(export::memory_viz_pickle);
    let real = snapshots().into_iter().map(|file| unpacked(&file));
    let written: [&[u8]; 3] = [
        b"\x80\x02}q\0(X\x08\0\0\0segmentsq\x01]q\x02X\x0d\0\0\0device_tracesq\x03]q\x04]q\x05}q\x06(\
          X\x06\0\0\0actionq\x07X\x05\0\0\0alloc\
          X\x04\0\0\0addrJ\0\x10\0\0X\x04\0\0\0sizeK\x08uaau.",
        b"\x80\x04\x95\x20\0\0\0\0\0\0\0}\x94\x8c\x08segments\x94]\x94}\x94(\x8c\x07address\x94\
          \x8a\x08\0\0\0\0\0\x7f\0\0ua\x8c\x01x\x94\x88\x8c\x01y\x94G?\xf0\0\0\0\0\0\0s.",
        b"\x80\x05\x8c\x0bcollections\x8c\x0bOrderedDict\x93)R\x8f(\
          K\x01K\x02\x90\x91N\x85\x86\x87\x96\x02\0\0\0\0\0\0\0ab\x97\x98.",
    ];
    truncated(exported.chain(real).chain(written.into_iter().map(<[u8]>::to_vec)))
}

/// Returns JSON snapshots.
pub(crate) fn jsons() -> Vec<Vec<u8>> {
    let exported = exported(export::memory_viz_json);
    let unusual: [&[u8]; 2] = [
        br#"{"device_traces": [[{"action": "alloc", "addr": 18446744073709551104, "size": 1,
            "stream": 99999999999999999999999, "time_us": 5, "more": 1e400,
            "frames": [{"name": "f", "filename": "\ud83d\ude00", "line": -3}]}]],
            "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "a:b", "roundup_power2_divisions": {"1": 2}}}"#,
        br#"[{"device": 0, "address": 1, "total_size": 3, "stream": 0, "segment_pool_id": [1, 2],
            "segment_type": "large", "is_expandable": true,
            "blocks": [{"size": 2, "requested_size": 1, "state": "active_pending_free",
                "history": [{"addr": 1, "real_size": 1}]}]}]"#,
    ];
    truncated(exported.chain(unusual.into_iter().map(<[u8]>::to_vec)))
}

/// Returns small inputs for the round trip, which imports and exports each one several times.
pub(crate) fn round_trips() -> Vec<Vec<u8>> {
    const MAX_LEN: usize = 8 << 10;
    jsons().into_iter().chain(histories()).filter(|seed| seed.len() <= MAX_LEN).collect()
}

/// Returns RMM logs.
pub(crate) fn rmm_logs() -> Vec<Vec<u8>> {
    let lines = "Thread,Time,Action,Pointer,Size,Stream\n";
    [
        "1,00:00:00.1,allocate,0x1000,1000,0x0\n1,00:00:00.2,free,0x1000,1000,0x0\n",
        "1,1700000000.5,allocate,0x1400,1000,0x1\r\n1,1700000001,allocate failure,0x0,99999999999,0x0\r\n",
        "1,23:59:59.999999,allocate,0xe00,4096,0x7f0000000000\n2,00:00:00,free,0xe00,4096,0x2,more\n",
        "1,00:00:00,allocate,0xffffffffffffff00,256,0\n\
         Thread,Time,Action,Pointer,Size,Stream\n\n\"1\",x,free,(nil),0,0\n",
    ]
    .iter()
    .map(|log| [lines, log].concat().into_bytes())
    .collect()
}

/// Returns packed files.
pub(crate) fn packed() -> Vec<Vec<u8>> {
    let mut seeds = snapshots();
    let contents = [vec![0; 6 << 20]].into_iter().chain(files().into_iter().take(4));
    let compress = |content: Vec<u8>| zstd::bulk::compress(&content, 1).expect("compression in memory does not fail");
    seeds.extend(contents.map(compress));
    let html = "<!doctype html>\n<script type=\"application/octet-stream\" id=\"recording\" data-name=\"a\">\
                aGVsbG8=</script>";
    seeds.push(html.into());
    seeds.retain(|seed| seed.len() <= MAX_SEED_LEN);
    seeds
}

/// Returns allocator settings.
pub(crate) fn confs() -> Vec<Vec<u8>> {
    [
        "expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.8",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],max_non_split_rounding_mb:20",
        "backend:native,roundup_power2_divisions:16,per_process_memory_fraction:0.5, large_segment_size_mb : 32",
        "pinned_use_background_threads:True,pinned_num_register_threads:4,release_lock_on_cudamalloc:False",
    ]
    .map(Vec::from)
    .to_vec()
}

/// Returns fragments of the page's URL.
pub(crate) fn links() -> Vec<Vec<u8>> {
    ["#event=5&from=0&to=18446744073709551615&device=3&select=0x7f00&color=site", "outside=shown&others=hidden"]
        .map(Vec::from)
        .to_vec()
}

/// Cuts seeds that are longer than [`MAX_SEED_LEN`].
fn truncated(seeds: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut seeds: Vec<_> = seeds.collect();
    seeds.iter_mut().for_each(|seed| seed.truncate(MAX_SEED_LEN));
    seeds
}

/// Returns tables of buffers: random tables, and one with all columns.
pub(crate) fn buffer_tables() -> Vec<Vec<u8>> {
    let mut random = Random::new(7);
    let mut table = "id,lower,upper,size\n".to_owned();
    for id in 0..60 {
        let lower = random.below(100);
        table += &format!("b{id},{lower},{},{}\n", lower + 1 + random.below(30), 64 * random.below(50));
    }
    let all_columns = "buffer_id,start,end,size,alignment,gaps,hint\n1,0,2,4,64,1-2,-1\n2,1,3,4,32,,7\n";
    vec![table.into_bytes(), all_columns.as_bytes().to_vec()]
}

#[cfg(test)]
mod tests {
    use vramscope_trace::Recording;

    use super::*;
    use crate::structured_input::{MAX_BUILT_LEN, build, from_recording};

    #[test]
    fn structured_input_rebuilds_its_recording() {
        for bytes in recordings() {
            let open = |bytes: &[u8]| {
                let mut recording = Recording::new();
                recording.push(bytes).expect("the recording is valid");
                recording.finish().expect("the recording is complete");
                recording
            };
            let recording = open(&bytes);
            for packing in [0, 0b0100, 0b1000, 0b1101, 0b1_1100, 0b10] {
                let built = open(&build(&from_recording(&bytes, packing)));
                assert_eq!(built.end_state(), recording.end_state(), "{packing}");
                assert_eq!(built.definitions(), recording.definitions(), "{packing}");
                assert_eq!(built.events(), recording.events(), "{packing}");
            }
        }
    }

    #[test]
    fn any_bytes_are_a_structured_input() {
        for bytes in [
            &b""[..],
            b"\xfe#K",
            b"\xfe#K\x03\xff\xfe#C",
            b"\xfe#C\x01\x0fx",
            b"\xfe#K\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\xfe#C\0\x0fab",
        ] {
            let _ = Recording::new().push(&build(bytes));
        }
        let long = build(b"\xfe#K\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\xfe#C\0\x0fab");
        assert!(long.len() > 2 << 15 && long.len() < 2 * MAX_BUILT_LEN, "columns are repeated up to a limit");
    }
}
