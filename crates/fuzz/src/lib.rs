//! Fuzz targets for every reader of vramscope, with their seeds.
//!
//! A *target* is a function of arbitrary bytes. It panics if a reader misbehaves: if the reader
//! panics, if two readers disagree, or if a share exceeds 1. The fuzzer, or the test that runs each
//! target briefly, detects excessive time and memory.
//!
//! This crate is not a fuzzer; cargo-fuzz links libFuzzer to the targets in `fuzz_targets`. `cargo
//! xtask fuzz` runs all of them.
//!
//! - [`TARGETS`] lists all targets with their seeds and words.
//! - [`structured_input`] builds recordings from bytes, so that mutations survive lengths and
//!   checksums.
//! - [`mutate`] changes an input, for tests without a fuzzer.
#![forbid(unsafe_code)]

mod autopsies;
mod buffers;
mod consistency_check;
mod exports;
mod history_input;
mod inspect;
mod live_recording;
mod mutate;
mod random;
mod readers;
mod recording_bytes;
mod recordings;
mod seeds;
pub mod structured_input;
mod traces;

pub use autopsies::autopsy;
pub use buffers::buffers;
pub use exports::{analyses, pool_rerun, round_trip};
pub use live_recording::live_recording;
pub use mutate::mutate;
pub use random::Random;
pub use readers::{json, page_link, pickle, rmm, settings, unpack};
pub use recordings::{chunks, consistency, encoder, index, recording};
pub use traces::kineto;

/// A fuzz target: a function of arbitrary bytes, with its seeds and words.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, which is also the name of its program in `fuzz_targets`.
    pub name: &'static str,
    /// Runs an input; panics if a reader misbehaves.
    pub run: fn(&[u8]),
    /// Returns the inputs that fuzzing begins with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words to insert into inputs, which a fuzzer would take long to find.
    pub words: &'static [&'static [u8]],
}

/// All targets: each has a name, the function, seeds, and words to insert.
pub const TARGETS: [Target; 18] = [
    Target { name: "recording", run: recording, seeds: seeds::files, words: &[] },
    Target { name: "chunks", run: chunks, seeds: seeds::structured_inputs, words: CHUNK_MARKERS },
    Target { name: "live_recording", run: live_recording, seeds: seeds::structured_inputs, words: CHUNK_MARKERS },
    Target { name: "index", run: index, seeds: seeds::indices, words: CHUNK_MARKERS },
    Target { name: "consistency", run: consistency, seeds: seeds::structured_inputs, words: CHUNK_MARKERS },
    Target { name: "encoder", run: encoder, seeds: seeds::histories, words: &[] },
    Target { name: "analyses", run: analyses, seeds: seeds::structured_inputs, words: CHUNK_MARKERS },
    Target { name: "pool_rerun", run: pool_rerun, seeds: seeds::rerun_inputs, words: CHUNK_MARKERS },
    Target { name: "autopsy", run: autopsy, seeds: seeds::failing_programs, words: REPEATS },
    Target { name: "pickle", run: pickle, seeds: seeds::pickles, words: KEYS },
    Target { name: "json", run: json, seeds: seeds::jsons, words: KEYS },
    Target { name: "kineto", run: kineto, seeds: traces::seeds, words: TRACE_WORDS },
    Target { name: "rmm", run: rmm, seeds: seeds::rmm_logs, words: LOG_WORDS },
    Target { name: "buffers", run: buffers, seeds: seeds::buffer_tables, words: BUFFER_COLUMNS },
    Target { name: "unpack", run: unpack, seeds: seeds::packed, words: MAGIC },
    Target { name: "round_trip", run: round_trip, seeds: seeds::round_trips, words: KEYS },
    Target { name: "settings", run: settings, seeds: seeds::confs, words: SETTINGS },
    Target { name: "page_link", run: page_link, seeds: seeds::links, words: LINK_WORDS },
];

/// Words of the fragment in the page's URL.
const LINK_WORDS: &[&[u8]] = &[b"event=", b"&", b"select=0x", b"color="];

/// Magic numbers of packed files, and the start of the recording in an HTML export.
const MAGIC: &[&[u8]] = &[
    b"\x1f\x8b\x08",
    b"\x28\xb5\x2f\xfd",
    b"<!doctype html>",
    b"<script type=\"application/octet-stream\" id=\"recording\"",
    b"</script>",
];

/// The markers of a structured input: the beginning of each kind of chunk, and of a column.
const CHUNK_MARKERS: &[&[u8]] =
    &[b"\xfe#K\x01\0", b"\xfe#K\x02\0", b"\xfe#K\x03\0", b"\xfe#K\x04\0", b"\xfe#K\x05\0", b"\xfe#C"];

/// Calls of a generated program: three repetitions of the calls before them, and a request of
/// 8 MiB.
const REPEATS: &[&[u8]] = &[b"\x07\x2f", b"\x07\x57", b"\x07\xff", b"\x50\xff"];

/// Keys and values of profiler traces.
const TRACE_WORDS: &[&[u8]] = &[
    br#""traceEvents":["#,
    br#""[memory]""#,
    br#""Bytes":"#,
    br#""Addr":"#,
    br#""Total Allocated":"#,
    br#""Total Reserved":"#,
    br#""ph":"X","cat":"cpu_op","#,
    br#""cat":"python_function","#,
    br#""ts":1.5,"#,
];

/// Words, pointers, times and line ends in RMM logs.
const LOG_WORDS: &[&[u8]] =
    &[b"allocate", b"free", b"allocate failure", b"0x", b"(nil)", b"00:00:00.000001", b"1700000000.123456", b"\r\n"];

/// Columns of tables of buffers, and line ends.
const BUFFER_COLUMNS: &[&[u8]] =
    &[b"id,lower,upper,size", b"alignment", b"gaps", b"hint", b"end", b"18446744073709551615", b"\r\n"];

/// Names of the allocator's settings.
const SETTINGS: &[&[u8]] = &[
    b"max_split_size_mb:",
    b"roundup_power2_divisions:[",
    b"garbage_collection_threshold:",
    b"expandable_segments:True",
    b"per_process_memory_fraction:",
    b"large_segment_size_mb:",
    b"max_non_split_rounding_mb:",
    b"backend:cudaMallocAsync",
];

/// The keys and actions of a snapshot, and common opcodes of its containers in a pickle.
const KEYS: &[&[u8]] = &[
    b"segments",
    b"device_traces",
    b"allocator_settings",
    b"external_annotations",
    b"action",
    b"alloc",
    b"free_requested",
    b"free_completed",
    b"segment_alloc",
    b"segment_free",
    b"segment_map",
    b"segment_unmap",
    b"oom",
    b"snapshot",
    b"annotate",
    b"addr",
    b"size",
    b"stream",
    b"time_us",
    b"frames",
    b"filename",
    b"line",
    b"name",
    b"device",
    b"address",
    b"total_size",
    b"segment_type",
    b"segment_pool_id",
    b"is_expandable",
    b"blocks",
    b"requested_size",
    b"state",
    b"active_allocated",
    b"active_pending_free",
    b"inactive",
    b"history",
    b"real_size",
    b"user_metadata",
    b"compile_context",
    b"device_free",
    b"stage",
    b"START",
    b"END",
    b"]\x94(",
    b"}\x94(",
    b"\x8c\x04",
    b"\x8a\x08",
    b"\x94",
    b"h\0",
    b"j\0\0\0\0",
];
