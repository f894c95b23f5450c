//! The time to a placement close to the lowest possible. The rate is in buffers.

#![allow(missing_docs)]

use std::fs;
use std::path::Path;

use divan::Bencher;
use divan::counter::ItemsCount;
use vramscope_insight::packing::{Buffer, DevicePacker, Packer, PackingState};
use vramscope_pool::rerun::History;
use vramscope_trace::Recording;

/// Number of steps between two checks of the placement.
const STEPS: u64 = 1_000_000;

fn main() {
    divan::main();
}

/// Returns true if the placement is at most `percent` of the lowest height that may be possible.
fn is_within(state: PackingState, percent: u64) -> bool {
    state.height_bytes * 100 <= state.lower_bound_bytes * percent
}

/// The requests of a recorded program, to 1% above the lower bound.
#[divan::bench(args = ["checkpoint_blocks-with.vram", "variable_lengths-default.vram"])]
fn recorded(bencher: Bencher, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pytorch/recordings");
    let mut recording = Recording::new();
    recording.push(&fs::read(folder.join(name)).expect("the recording exists")).expect("it is valid");
    let requests = History::from_recording(&recording).expect("all chunks are in memory").remove(0).requests();
    let count = requests.requests.len();
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        let mut packer = DevicePacker::new(requests.clone()).expect("the requests are valid");
        while !is_within(packer.advance(STEPS), 101) {}
        packer.state()
    });
}

/// Random lifetimes and sizes, of which 300 live at one time, to 4% above the peak.
#[divan::bench(args = [1_000, 10_000])]
fn random(bencher: Bencher, count: usize) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut live: Vec<Buffer> = Vec::new();
    let mut buffers = Vec::new();
    for time in 0.. {
        if buffers.len() + live.len() == count {
            break;
        }
        if live.len() < 300 || random.bool() {
            live.push(Buffer { lower: time, upper: u64::MAX, size: 512 << random.u32(0..17) });
        } else {
            let mut ended = live.swap_remove(random.usize(0..live.len()));
            ended.upper = time;
            buffers.push(ended);
        }
    }
    buffers.append(&mut live);
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        let mut packer = Packer::new(&buffers).expect("the buffers are valid");
        while !is_within(packer.advance(STEPS), 104) {}
        packer.state()
    });
}
