//! Tests of dropped events: gaps, counts and the state after them.

use vramscope_pool::Settings;
use vramscope_trace::{DecodedItem, DeviceId, Event, EventKind, MemoryState, Relabel, Sink, SiteId, StreamId};

use super::tests::{items, mark, sent, with_stuck_disk};
use super::*;
use crate::host::HostDevice;
use crate::pool::HostPool;
use crate::wait_until::{TIMEOUT, wait_until};

/// Returns the number of events without gaps, the number of gaps, the lost events, and the final
/// state.
fn read(hub: &Hub) -> (u64, u64, u64, MemoryState) {
    let (mut events, mut gaps, mut lost, mut state) = (0, 0, 0, MemoryState::default());
    for item in items(&sent(hub)) {
        match item {
            DecodedItem::Event(event) => {
                match event.kind {
                    EventKind::Gap { lost: more } => {
                        gaps += 1;
                        lost += more;
                    }
                    _ => events += 1,
                }
                state.apply(&event);
            }
            DecodedItem::FullState(full) => state = *full,
            DecodedItem::Relabel(relabel) => state.relabel(&relabel),
            _ => {}
        }
    }
    (events, gaps, lost, state)
}

/// A program that allocates and frees blocks, and keeps some.
struct Program {
    pool: HostPool,
    live: Vec<u64>,
    random: fastrand::Rng,
}

impl Program {
    fn new(pool: &HostPool) -> Self {
        Self { pool: pool.clone(), live: Vec::new(), random: fastrand::Rng::with_seed(1) }
    }

    fn run(&mut self, calls: u64) {
        for _ in 0..calls {
            if self.live.len() > 200 || (!self.live.is_empty() && self.random.bool()) {
                let address = self.live.swap_remove(self.random.usize(..self.live.len()));
                // SAFETY: The address was returned once, is freed once, and is not used.
                unsafe { self.pool.caching_allocator_delete(address) }.expect("the block is live");
            } else {
                let (bytes, stream) = (512 << self.random.u32(..12), StreamId(self.random.u64(..3)));
                let address = self.pool.caching_allocator_alloc(bytes, stream).expect("the device is large enough");
                self.live.push(address.expect("the request is for more than 0 bytes"));
            }
        }
    }

    /// Checks that the recording ends with the pool's blocks.
    #[track_caller]
    fn check(&self, recorded: &MemoryState) {
        let stats = self.pool.stats();
        let state = recorded.device(DeviceId(0)).expect("the device has events");
        let counters = state.counters();
        assert_eq!(counters.allocated, stats.allocated_bytes.all.current);
        assert_eq!(counters.reserved, stats.reserved_bytes.all.current);
        assert_eq!(counters.requested, stats.requested_bytes.all.current);
        assert!(state.blocks().map(|block| block.address).eq(sorted(&self.live)));
        assert_eq!(state.inconsistencies(), 0);
    }
}

fn sorted(addresses: &[u64]) -> Vec<u64> {
    let mut sorted = addresses.to_vec();
    sorted.sort_unstable();
    sorted
}

fn pool(handle: &RecorderHandle) -> HostPool {
    HostPool::recorded(HostDevice::new(1 << 30), Settings::default(), handle)
}

#[test]
fn state_is_correct_after_dropped_events() {
    let hub = Hub::default();
    let (disk_writes, recorder, handle) = with_stuck_disk(&hub, 1, TIMEOUT, Overflow::Drop);
    let mut program = Program::new(&pool(&handle));
    // The disk completes no write until the program has made its calls.
    program.run(300_000);
    drop(disk_writes);
    handle.flush();
    program.run(10);
    let summary = recorder.stop();
    assert_eq!(summary.waits, 0);
    let (events, gaps, lost, state) = read(&hub);
    assert!(lost > 100_000, "{lost}");
    assert_eq!((summary.events, summary.lost_events), (events + gaps, lost));
    program.check(&state);
    // Blocks known before and after the gap keep the event that allocated them; all others have the
    // gap's event number.
    let device = state.device(DeviceId(0)).expect("the device has events");
    assert!(device.blocks().all(|block| block.since_event < state.event()));
}

#[test]
fn labels_survive_dropped_events() {
    let hub = Hub::default();
    let (disk_writes, recorder, mut handle) = with_stuck_disk(&hub, 1, TIMEOUT, Overflow::Drop);
    let mut program = Program::new(&pool(&handle));
    program.run(1);
    // The program keeps its first block.
    let address = program.live.remove(0);
    let site = SiteId(77);
    let relabel = Relabel { device: DeviceId(0), time_ns: handle.now_ns(), address, site };
    handle.relabel(&relabel);
    program.run(300_000);
    drop(disk_writes);
    handle.flush();
    program.run(10);
    recorder.stop();
    let (_, gaps, lost, state) = read(&hub);
    assert!(gaps > 0 && lost > 100_000, "{lost}");
    program.live.push(address);
    program.check(&state);
    let block = state.device(DeviceId(0)).and_then(|device| device.block(address)).expect("the block is live");
    assert_eq!(block.site, site);
}

#[test]
fn idle_program_records_its_state_after_dropped_events() {
    let hub = Hub::default();
    let (disk_writes, recorder, handle) = with_stuck_disk(&hub, 1, TIMEOUT, Overflow::Drop);
    let mut program = Program::new(&pool(&handle));
    program.run(300_000);
    wait_until("events are counted while they are dropped", || {
        // The disk completes some writes, so that the recorder continues.
        let _ = disk_writes.send(());
        hub.figures().lost_events > 0
    });
    drop(disk_writes);
    wait_until("the recorder requests the pool's state, though the program makes no calls", || read(&hub).2 > 0);
    handle.flush();
    let (events, gaps, lost, state) = read(&hub);
    program.check(&state);
    let summary = recorder.stop();
    assert_eq!((summary.events, summary.lost_events), (events + gaps, lost));
}

#[test]
fn every_event_is_recorded_or_counted() {
    let hub = Hub::default();
    let (disk_writes, recorder, handle) = with_stuck_disk(&hub, 1, TIMEOUT, Overflow::Drop);
    let mut program = Program::new(&pool(&handle));
    let count = Count(Arc::default());
    let pool = HostPool::new(HostDevice::new(1 << 30), Settings::default(), count.clone(), || 0);
    let mut unlimited = Program::new(&pool);
    let is_dropping = || !recorder.shared.lock().dropped.is_empty();
    for _ in 0..5 {
        while !is_dropping() {
            program.run(1000);
            unlimited.run(1000);
        }
        wait_until("the recorder has caught up", || {
            let _ = disk_writes.send(());
            !is_dropping()
        });
    }
    drop(disk_writes);
    handle.flush();
    program.run(1);
    unlimited.run(1);
    recorder.stop();
    let (events, gaps, lost, state) = read(&hub);
    assert!(gaps >= 5, "{gaps} gaps");
    assert_eq!(events + lost, count.0.load(std::sync::atomic::Ordering::Relaxed));
    program.check(&state);
}

/// A sink that counts events.
#[derive(Clone)]
struct Count(Arc<std::sync::atomic::AtomicU64>);

impl Sink for Count {
    fn event(&mut self, _: &Event) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
}

#[test]
fn events_dropped_at_the_end_are_counted() {
    let hub = Hub::default();
    let (disk_writes, recorder, mut handle) = with_stuck_disk(&hub, 1, TIMEOUT, Overflow::Drop);
    for n in 1..=300_000 {
        handle.event(&mark(handle.now_ns(), n));
    }
    drop(disk_writes);
    let summary = recorder.stop();
    let (events, _, lost, _) = read(&hub);
    assert_eq!(events + lost, 300_000);
    assert!(lost > 0);
    assert_eq!(summary.lost_events, lost);
}

#[test]
fn handles_without_state_continue_after_a_gap() {
    let hub = Hub::default();
    let (disk_writes, recorder, mut handle) = with_stuck_disk(&hub, 1, TIMEOUT, Overflow::Drop);
    // More handles than rings, so that some share one.
    let mut handles: Vec<_> = (0..20).map(|_| handle.clone()).collect();
    for n in 0..20 * 150_000 {
        handles[n % 20].event(&mark(handle.now_ns(), 1));
    }
    drop(disk_writes);
    handle.flush();
    for handle in &mut handles {
        handle.event(&mark(handle.now_ns(), 2));
    }
    handle.mark(DeviceId(3), "by name");
    recorder.stop();
    let (events, _, lost, _) = read(&hub);
    assert_eq!(events + lost, 20 * 150_000 + 20 + 1);
    assert!(lost > 0);
}
