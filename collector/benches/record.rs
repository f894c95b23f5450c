//! What recording costs the program that is recorded, an event; `speed.rs` measures it with the pool around it.

#![allow(missing_docs)]

use divan::Bencher;
use vramscope_collector::{Hub, Outputs, Recorder, RecorderHandle};
use vramscope_trace::{DeviceId, Event, EventKind, PoolKey, PoolKind, RecordingInfo, Sink, SiteId, StreamId};

fn main() {
    divan::main();
}

/// A program that allocates one block and frees it, over and over.
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

/// As many events a second as the recorder's thread can encode, for which the program waits once the queue is full.
#[divan::bench(sample_count = 20, sample_size = 1)]
fn without_a_pause(bencher: Bencher) {
    let outputs = Outputs { hub: Some(Hub::default()), ..Outputs::default() };
    let (_recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread");
    let mut program = Program { handle, count: 0 };
    bencher.counter(300_000u32).bench_local(|| {
        for _ in 0..300_000 {
            program.event();
        }
    });
}

/// A thousand events, then 5 ms of other work: 200,000 events a second, more than any training step measured.
#[divan::bench(sample_count = 200, sample_size = 1)]
fn a_thousand_in_a_busy_program(bencher: Bencher) {
    let outputs = Outputs { hub: Some(Hub::default()), ..Outputs::default() };
    let (_recorder, handle) = Recorder::start(RecordingInfo::default(), outputs).expect("a thread");
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

/// The clock alone, which every event reads.
#[divan::bench]
fn the_clock(bencher: Bencher) {
    let (_recorder, handle) = Recorder::start(RecordingInfo::default(), Outputs::default()).expect("a thread");
    bencher.bench_local(|| handle.now_ns());
}
