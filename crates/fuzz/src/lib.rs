//! Hostile input for every reader of the house: what a fuzzer calls, and what it begins with.
//!
//! A *target* is a function of bytes that may be anything. It panics where a reader breaks its word: where it panics itself, where two
//! readers of the same thing disagree, where a share is more than 1. What takes too long or too much memory the fuzzer finds, or the
//! test that runs each target for a moment.
//!
//! This crate is not a fuzzer: that is libFuzzer, which cargo-fuzz links to the targets in `fuzz_targets`. `cargo xtask fuzz` runs all of them.
//!
//! - [`TARGETS`] are all targets, with their seeds and words.
//! - [`sketch`] makes recordings of bytes, so that a change gets behind lengths and checksums.
//! - [`mutate`] changes an input where no fuzzer is at hand.
#![forbid(unsafe_code)]

mod agree;
mod events;
mod exports;
mod growing;
mod look;
mod mutate;
mod random;
mod readers;
mod recordings;
mod seeds;
pub mod sketch;

pub use exports::{analyses, reruns, round_trip};
pub use growing::growing;
pub use mutate::mutate;
pub use random::Random;
pub use readers::{json, link, pickle, rmm, settings, unpacking};
pub use recordings::{agreement, chunks, encoder, index, recording};

/// Something that takes bytes from anyone.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name; `fuzz_targets` has a program of that name.
    pub name: &'static str,
    /// Takes an input, and panics where something is wrong.
    pub run: fn(&[u8]),
    /// What fuzzing begins with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that a fuzzer would be long to find.
    pub words: &'static [&'static [u8]],
}

/// All targets.
pub const TARGETS: [Target; 15] = [
    Target { name: "recording", run: recording, seeds: seeds::files, words: &[] },
    Target { name: "chunks", run: chunks, seeds: seeds::sketches, words: MARKS },
    Target { name: "growing", run: growing, seeds: seeds::sketches, words: MARKS },
    Target { name: "index", run: index, seeds: seeds::indices, words: MARKS },
    Target { name: "agreement", run: agreement, seeds: seeds::sketches, words: MARKS },
    Target { name: "encoder", run: encoder, seeds: seeds::history_bytes, words: &[] },
    Target { name: "analyses", run: analyses, seeds: seeds::sketches, words: MARKS },
    Target { name: "reruns", run: reruns, seeds: seeds::sketches_and_histories, words: MARKS },
    Target { name: "pickle", run: pickle, seeds: seeds::pickles, words: KEYS },
    Target { name: "json", run: json, seeds: seeds::jsons, words: KEYS },
    Target { name: "rmm", run: rmm, seeds: seeds::rmm_logs, words: LOG_WORDS },
    Target { name: "unpacking", run: unpacking, seeds: seeds::packed, words: &[b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"] },
    Target { name: "round_trip", run: round_trip, seeds: seeds::round_trips, words: KEYS },
    Target { name: "settings", run: settings, seeds: seeds::confs, words: SETTINGS },
    Target { name: "link", run: link, seeds: seeds::links, words: &[b"event=", b"&", b"select=0x", b"color="] },
];

const MARKS: &[&[u8]] =
    &[b"\xfe#K\x01\0", b"\xfe#K\x02\0", b"\xfe#K\x03\0", b"\xfe#K\x04\0", b"\xfe#K\x05\0", b"\xfe#C"];

const LOG_WORDS: &[&[u8]] =
    &[b"allocate", b"free", b"allocate failure", b"0x", b"(nil)", b"00:00:00.000001", b"1700000000.123456", b"\r\n"];

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

/// The keys and actions of a snapshot, and what containers are made of in a pickle.
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
