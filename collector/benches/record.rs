//! Cost of recording one event, without a pool; `speed.rs` measures pool and recording together.

#![allow(missing_docs)]

use divan::Bencher;
use vramscope_collector::{Hub, Outputs, Recorder, RecorderHandle};
use vramscope_trace::{DeviceId, Event, EventKind, PoolKey, PoolKind, RecordingInfo, Sink, SiteId, StreamId};

fn main() {
    divan::main();
}

/// A program that allocates and frees one block after another.
struct Program {
    handle: RecorderHandle,
    count: u64,
}

impl Program {
    fn event(&mut self) {
        let (address, size) = (0x7f00_0000_0000 + self.count / 3 % 512 * 4096, 4096);
        let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Small), SiteId(0));
        let kind = match self.count % 3 {
            0 => EventKind::BlockAllocated { address, size, requested: 4000, stream, pool, site },
            1 => EventKind::FreeRequested { address, site },
            _ => EventKind::FreeCompleted { address, site },
        };
        self.handle.event(&Event { device: DeviceId(0), time_ns: self.handle.now_ns(), kind });
        self.count += 1;
    }
}

/// An event in a program that does nothing else: once the ring is full, the program waits for the
/// recorder, so this is the recorder's throughput.
#[divan::bench(sample_count = 20, sample_size = 1)]
fn event_without_pauses(bencher: Bencher) {
    let outputs = Outputs { hub: Some(Hub::default()), ..Outputs::default() };
    let (_recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the recorder starts");
    let mut program = Program { handle, count: 0 };
    bencher.counter(300_000u32).bench_local(|| {
        for _ in 0..300_000 {
            program.event();
        }
    });
}

/// An event in bursts of 1000, 5 ms apart: 200,000 events per second, more than any training step
/// that was measured.
#[divan::bench(sample_count = 200, sample_size = 1)]
fn event_in_bursts(bencher: Bencher) {
    let outputs = Outputs { hub: Some(Hub::default()), ..Outputs::default() };
    let (_recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("the recorder starts");
    let mut program = Program { handle, count: 0 };
    bencher
        .with_inputs(|| std::thread::sleep(std::time::Duration::from_millis(5)))
        .counter(1000u32)
        .bench_local_values(|()| {
            for _ in 0..1000 {
                program.event();
            }
        });
}

/// Reading the clock, once per event.
#[divan::bench]
fn read_clock(bencher: Bencher) {
    let (_recorder, handle) =
        Recorder::start(RecordingInfo::default(), Outputs::default()).expect("the recorder starts");
    bencher.bench_local(|| handle.now_ns());
}
