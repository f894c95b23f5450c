//! The pool's reports against PyTorch's: the keys of the statistics, the summary table, and the
//! out-of-memory message.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use vramscope_formats::{Limits, ignore_progress, import, unpack};
use vramscope_pool::{MemoryStats, MempoolError, OutOfMemory, Settings, Stat, StatBySize, Stats, memory_summary, size};
use vramscope_trace::{DeviceId, EventKind, MemorySink, MemoryState, MempoolId, StreamId};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Reads the reference values that PyTorch reported, with their paths, from a folder.
fn references(folder: &Path) -> Vec<(PathBuf, Value)> {
    let files = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = files.map(|file| file.expect("the folder can be listed").path());
    let references: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| {
            let reference = serde_json::from_slice(&fs::read(&path).expect("the reference can be read"))
                .expect("the reference is JSON");
            (path, reference)
        })
        .collect();
    assert!(!references.is_empty(), "{} has no reference files", folder.display());
    references
}

fn stats_of(reference: &Value) -> Stats {
    let number = |key: String| reference[&key].as_u64().unwrap_or_else(|| panic!("the reference has no {key}"));
    let stat = |prefix: String| Stat {
        current: number(format!("{prefix}.current")),
        peak: number(format!("{prefix}.peak")),
        allocated: number(format!("{prefix}.allocated")),
        freed: number(format!("{prefix}.freed")),
    };
    let by_size = |quantity: &str| StatBySize {
        all: stat(format!("{quantity}.all")),
        small_pool: stat(format!("{quantity}.small_pool")),
        large_pool: stat(format!("{quantity}.large_pool")),
    };
    Stats {
        allocation: by_size("allocation"),
        segment: by_size("segment"),
        active: by_size("active"),
        inactive_split: by_size("inactive_split"),
        allocated_bytes: by_size("allocated_bytes"),
        reserved_bytes: by_size("reserved_bytes"),
        active_bytes: by_size("active_bytes"),
        inactive_split_bytes: by_size("inactive_split_bytes"),
        requested_bytes: by_size("requested_bytes"),
        oversize_allocations: stat("oversize_allocations".to_owned()),
        oversize_segments: stat("oversize_segments".to_owned()),
        num_alloc_retries: number("num_alloc_retries".to_owned()),
        num_ooms: number("num_ooms".to_owned()),
        num_sync_all_streams: number("num_sync_all_streams".to_owned()),
        num_device_alloc: number("num_device_alloc".to_owned()),
        num_device_free: number("num_device_free".to_owned()),
        max_split_size: reference["max_split_size"].as_u64(),
    }
}

/// Reconstructs the last recorded failure from the memory state in the history.
fn last_out_of_memory(path: &Path, reference: &Value) -> OutOfMemory {
    let limits = Limits::default();
    let packed = fs::read(path.with_extension("pickle.zst")).expect("each reference has a recording");
    let bytes = unpack(&packed, &limits).expect("the recording decompresses");
    let (memory, imported) =
        import(&bytes, "", &limits, &mut ignore_progress, |_| MemorySink::default()).expect("the recording is valid");
    let is_failure = |kind| matches!(kind, EventKind::OutOfMemory { .. });
    let last = memory.events.iter().rposition(|event| is_failure(event.kind)).expect("the history has a failure");
    let mut state = MemoryState::default();
    memory.events[..=last].iter().for_each(|event| state.apply(event));
    let event = memory.events[last];
    let EventKind::OutOfMemory { requested, device_free, stream, .. } = event.kind else { unreachable!() };
    let counters = state.device(event.device).expect("the device has state").counters();
    let settings = Settings::parse(&imported.info.alloc_conf).expect("recorded settings are valid");
    OutOfMemory {
        device: event.device,
        requested,
        segment_bytes: size::segment_size(&settings, requested),
        stream,
        device_free_bytes: device_free,
        device_total_bytes: reference["mem_get_info"][1].as_u64().expect("the reference has the device's size"),
        limit_bytes: reference["limit_bytes"].as_u64(),
        allocated_bytes: counters.allocated,
        reserved_bytes: counters.reserved,
        private_pool_bytes: 0,
        largest_free_bytes: 0,
        process_bytes: None,
        other_processes_bytes: None,
        settings,
    }
}

/// Returns the part of PyTorch's message that both messages contain, without other processes and
/// advice, with our wording for who holds the memory.
fn common_part(message: &str) -> String {
    let message = message.split(" If reserved but").next().unwrap_or_default();
    let sentences = message.split_inclusive(". ").filter(|sentence| !sentence.contains("memory in use"));
    let renamed = sentences.collect::<String>();
    let words = [
        ("CUDA out of memory", "out of memory"),
        (". GPU", ". Device"),
        ("allocated by PyTorch", "allocated by the program"),
        ("reserved by PyTorch", "reserved by the pool"),
    ];
    words.iter().fold(renamed, |text, (pytorch_words, our_words)| text.replace(pytorch_words, our_words))
}

fn check(path: &Path, reference: &Value) {
    let name = path.display();
    let stats = stats_of(&reference["stats"]);
    assert_eq!(serde_json::to_value(MemoryStats::from(stats)).unwrap(), reference["stats"], "{name}");
    assert!(MemoryStats::from(stats).entries().is_sorted(), "{name}");

    let table = reference["summary"].as_str().expect("a reference has a summary");
    assert_eq!(memory_summary(&stats, DeviceId(0), false), table, "{name}");
    let short: String = table.split_inclusive('\n').filter(|row| !row.contains(" pool |")).collect();
    assert_eq!(memory_summary(&stats, DeviceId(0), true), short, "{name}, abbreviated");

    if let Some(message) = reference["last_oom"].as_str() {
        let our_message = last_out_of_memory(path, reference).to_string();
        let pytorch_message = common_part(message);
        assert!(
            pytorch_message.contains("Tried to allocate") && pytorch_message.ends_with("unallocated."),
            "{name}: {pytorch_message}"
        );
        assert!(our_message.starts_with(&pytorch_message), "{name}:\n{our_message}\n{pytorch_message}");
    }
}

#[test]
fn small_recordings_reports_match_pytorch() {
    references(&workspace_root().join("tests/data")).iter().for_each(|(path, reference)| check(path, reference));
}

#[test]
fn large_recordings_reports_match_pytorch() {
    let folder = workspace_root().join("../shared/snapshots");
    if folder.is_dir() {
        references(&folder).iter().for_each(|(path, reference)| check(path, reference));
    } else {
        println!("SKIPPED: {} does not exist", folder.display());
    }
}

#[test]
fn summary_columns_change_units_like_pytorch() {
    let cells = |bytes: u64, count: u64| {
        let stat = |current| StatBySize { all: Stat { current, ..Stat::default() }, ..StatBySize::default() };
        let stats = Stats { allocated_bytes: stat(bytes), allocation: stat(count), ..Stats::default() };
        let table = memory_summary(&stats, DeviceId(12), true);
        let cell = |row| table.lines().find(|line| line.contains(row)).unwrap().split('|').nth(2).unwrap().to_owned();
        (cell("Allocated memory"), cell("Allocations"))
    };
    let table = [
        (0, 0, "      0 B   ", "       0    "),
        (768 * 1024 - 1, 750_000 - 1, " 786431 B   ", "  749999    "),
        (768 * 1024, 750_000, "    768 KiB ", "     750 K  "),
        (768 * MIB - 1, 750_000_000 - 1, " 786431 KiB ", "  749999 K  "),
        (768 * MIB, 750_000_000, "    768 MiB ", "     750 M  "),
        (768 * GIB, u64::MAX, "    768 GiB ", " 18446744073709 M  "),
        (u64::MAX, 1, "  16383 PiB ", "       1    "),
    ];
    for (bytes, count, size, number) in table {
        assert_eq!(cells(bytes, count), (size.to_owned(), number.to_owned()), "{bytes} bytes, {count}");
    }
    assert!(memory_summary(&Stats::default(), DeviceId(12), true).contains("device ID 12                |"));
}

fn failure() -> OutOfMemory {
    OutOfMemory {
        device: DeviceId(1),
        requested: 40 * MIB,
        segment_bytes: 40 * MIB,
        stream: StreamId(0),
        device_free_bytes: 0,
        device_total_bytes: 10 * GIB,
        limit_bytes: None,
        allocated_bytes: 9 * GIB,
        reserved_bytes: 10 * GIB,
        private_pool_bytes: 0,
        largest_free_bytes: 39 * MIB,
        process_bytes: None,
        other_processes_bytes: None,
        settings: Settings::default(),
    }
}

#[test]
fn out_of_memory_suggests_only_settings_that_might_help() {
    let expandable = Settings { expandable_segments: true, ..Settings::default() };
    let split = "expandable_segments:True would let requests use the unallocated memory; \
                 max_split_size_mb:40 would keep blocks of this size from being split";
    let limit = "the device has enough free memory: per_process_memory_fraction:0.304 would let the pool use it";
    let limited = OutOfMemory {
        limit_bytes: Some(3 * GIB),
        reserved_bytes: 3 * GIB,
        allocated_bytes: 3 * GIB,
        device_free_bytes: 7 * GIB,
        ..failure()
    };
    let table = [
        ("fragmented", failure(), split.to_owned()),
        ("whole", OutOfMemory { largest_free_bytes: 40 * MIB, ..failure() }, String::new()),
        ("full", OutOfMemory { allocated_bytes: 10 * GIB - 40 * MIB + 1, ..failure() }, String::new()),
        ("private", OutOfMemory { private_pool_bytes: GIB - 40 * MIB + 1, ..failure() }, String::new()),
        ("expandable", OutOfMemory { settings: expandable, ..failure() }, String::new()),
        (
            "small",
            OutOfMemory { requested: 19 * MIB, largest_free_bytes: MIB, ..failure() },
            split.split(';').next().unwrap().to_owned(),
        ),
        ("limited", limited.clone(), limit.to_owned()),
        ("both", OutOfMemory { allocated_bytes: 2 * GIB, ..limited.clone() }, format!("{split}; {limit}")),
        ("limited by both", OutOfMemory { device_free_bytes: 40 * MIB - 1, ..limited }, String::new()),
    ];
    for (name, failure, remedies) in table {
        assert_eq!(failure.remedies(), remedies, "{name}");
        assert_eq!(failure.to_string().contains("Settings that might help"), !remedies.is_empty(), "{name}");
    }
}

#[test]
fn out_of_memory_reports_other_memory_if_known() {
    let failure = OutOfMemory {
        process_bytes: Some(1024),
        other_processes_bytes: Some(1025),
        limit_bytes: Some(GIB),
        private_pool_bytes: GIB / 2,
        ..failure()
    };
    assert_eq!(
        failure.to_string(),
        "out of memory. Tried to allocate 40.00 MiB. Device 1 has a total capacity of 10.00 GiB of which 0 \
         bytes is free. Including memory outside of the pool, this process has 1024 bytes memory in use. \
         Other processes have 1.00 KiB memory in use. 1024.00 MiB allowed; Of the allocated memory 9.50 GiB \
         is allocated by the program, with 512.00 MiB allocated in private pools (e.g., CUDA Graphs), and \
         512.00 MiB is reserved by the pool but unallocated. The largest free block has 39.00 MiB. Settings \
         that might help: expandable_segments:True would let requests use the unallocated memory; \
         max_split_size_mb:40 would keep blocks of this size from being split"
    );
}

#[test]
fn private_pool_errors_name_the_pool() {
    let error = MempoolError::Unknown(MempoolId(0, 7));
    assert_eq!(error.to_string(), "private pool (0, 7) does not exist");
}

#[test]
fn pinned_host_memory_has_no_history() {
    let snapshot = br#"{
        "device_traces": [[{"action": "segment_alloc", "addr": 33554432, "size": 2097152, "stream": 0, "time_us": 1}]],
        "host_traces": [{"action": "segment_alloc", "addr": 4096, "size": 8192, "stream": 0, "time_us": 2}]
    }"#;
    let encode = vramscope_trace::Encoder::new;
    let (mut encoder, imported) =
        import(snapshot, "pinned", &Limits::default(), &mut ignore_progress, encode).expect("the snapshot is valid");
    assert_eq!(imported.info.devices.iter().map(|device| device.device).collect::<Vec<_>>(), [0, DeviceId::HOST.0]);
    encoder.flush();
    let mut recording = vramscope_trace::Recording::new();
    encoder.take_output().iter().for_each(|chunk| recording.push(&chunk.bytes).expect("encoded chunks decode"));
    let histories = vramscope_pool::rerun::History::from_recording(&recording).expect("the recording can be read");
    assert_eq!(histories.iter().map(|history| history.device()).collect::<Vec<_>>(), [DeviceId(0)]);
}
