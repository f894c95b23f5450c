//! Tests of the packer with all its searches.

use vramscope_pool::rerun::{RecordedRequest, RecordedRequests, RequestArena};
use vramscope_trace::{MempoolId, StreamId};

use super::reuse::{self, Reuse};
use super::{Buffer, DevicePacker, Packer, PackingState, PlacedRequest, check_placement};

/// Runs a packer for at most `steps` steps, and checks its placement.
fn pack(buffers: &[Buffer], steps: u64) -> PackingState {
    let mut packer = Packer::new(buffers).expect("the buffers are valid");
    let first = packer.state();
    assert_eq!(check_placement(buffers, &packer.offsets()), Ok(first.height_bytes));
    let mut left = steps;
    while left > 0 && !packer.advance(left.min(10_000)).is_done {
        left -= left.min(10_000);
    }
    let state = packer.state();
    assert_eq!(check_placement(buffers, &packer.offsets()), Ok(state.height_bytes));
    assert!(state.lower_bound_bytes <= state.height_bytes && state.height_bytes <= first.height_bytes);
    state
}

/// Returns buffers with random sizes, some of which live long.
fn random_buffers(count: usize, seed: u64) -> Vec<Buffer> {
    let mut random = fastrand::Rng::with_seed(seed);
    let buffer = |_| {
        let lower = random.u64(0..1000);
        let length = if random.u32(0..8) == 0 { 900 } else { random.u64(1..60) };
        Buffer { lower, upper: lower + length, size: 512 * random.u64(1..200) }
    };
    (0..count).map(buffer).collect()
}

#[test]
fn packer_without_buffers_is_done() {
    for buffers in [&[][..], &[Buffer { lower: 3, upper: 4, size: 0 }]] {
        let state = pack(buffers, 100);
        assert_eq!((state.height_bytes, state.is_done), (0, true));
    }
}

#[test]
fn random_buffers_are_close_to_the_peak() {
    for seed in 0..10 {
        let state = pack(&random_buffers(400, seed), 20_000_000);
        assert!(state.height_bytes * 100 <= state.peak_live_bytes * 106, "seed {seed}: {state:?}");
    }
}

/// Returns the lowest height of buffers of these `sizes`, by brute force: one of all orders, with
/// each buffer as low as possible, reaches it. `excludes` returns true for two buffers that need
/// different memory.
fn lowest(sizes: &[u64], excludes: &impl Fn(usize, usize) -> bool, offsets: &mut Vec<Option<u64>>) -> u64 {
    let mut best = u64::MAX;
    for index in 0..sizes.len() {
        if offsets[index].is_some() {
            continue;
        }
        let placed = offsets.iter().enumerate().filter_map(|(other, offset)| Some((other, (*offset)?)));
        let excluded = placed.filter(|&(other, _)| excludes(index, other));
        let mut taken: Vec<(u64, u64)> = excluded.map(|(other, at)| (at, at + sizes[other])).collect();
        taken.sort_unstable();
        let mut at = 0;
        for (start, end) in taken {
            if start >= at + sizes[index] {
                break;
            }
            at = at.max(end);
        }
        offsets[index] = Some(at);
        best = best.min(lowest(sizes, excludes, offsets));
        offsets[index] = None;
    }
    if best < u64::MAX {
        return best;
    }
    sizes.iter().zip(offsets.iter()).map(|(size, at)| at.unwrap_or(0) + size).max().unwrap_or(0)
}

#[test]
fn few_buffers_are_placed_lowest() {
    // The last one needs more than its peak.
    let mut above_peak = 0;
    for seed in (0..100).chain([160_351]) {
        let mut random = fastrand::Rng::with_seed(seed);
        let buffer = |_| {
            let lower = random.u64(0..8);
            Buffer { lower, upper: lower + random.u64(1..5), size: random.u64(1..6) }
        };
        let buffers: Vec<Buffer> = (0..7).map(buffer).collect();
        let state = pack(&buffers, 10_000_000);
        assert!(state.is_done, "seed {seed}: {state:?}");
        let overlap = |one: usize, other: usize| {
            buffers[other].lower < buffers[one].upper && buffers[one].lower < buffers[other].upper
        };
        let sizes: Vec<u64> = buffers.iter().map(|buffer| buffer.size).collect();
        assert_eq!(state.height_bytes, lowest(&sizes, &overlap, &mut vec![None; sizes.len()]), "seed {seed}");
        above_peak += u64::from(state.height_bytes > state.peak_live_bytes);
    }
    assert_eq!(above_peak, 1);
}

#[test]
fn packer_is_done_at_the_capacity() {
    let buffers = random_buffers(400, 3);
    let peak = Packer::new(&buffers).expect("the buffers are valid").state().peak_live_bytes;
    let mut packer = Packer::new(&buffers).expect("the buffers are valid").with_capacity(peak / 10 * 11);
    while !packer.advance(100_000).is_done {}
    assert!(packer.state().height_bytes <= peak / 10 * 11);
    let impossible = Packer::new(&buffers).expect("the buffers are valid").with_capacity(peak - 512);
    assert!(impossible.state().is_done && impossible.state().height_bytes > peak - 512);
}

#[test]
fn same_steps_give_the_same_result() {
    let buffers = random_buffers(200, 7);
    let run = |portion: u64| {
        let mut packer = Packer::new(&buffers).expect("the buffers are valid");
        let states: Vec<_> = (0..3_000_000 / portion).map(|_| packer.advance(portion).height_bytes).collect();
        states.last().copied()
    };
    assert_eq!(run(3_000_000), run(3_000_000));
}

/// Returns a few random requests of two streams and a private pool; every other one is large enough
/// for a segment of its own.
fn few_requests_of_streams(random: &mut fastrand::Rng) -> RecordedRequests {
    let arena = |stream, pool, released| {
        let mempool = if pool { MempoolId(0, 1) } else { MempoolId::default() };
        RequestArena { stream: StreamId(stream), mempool, released }
    };
    let mut starts: Vec<u64> = (0..7).map(|_| random.u64(0..12)).collect();
    starts.sort_unstable();
    let mut request = |lower: u64| {
        let bytes = random.u64(1..6) << if random.bool() { 20 } else { 24 };
        let freed = lower + random.u64(1..5);
        // Requests of the private pool are rare.
        let arena = [0, 1, 0, 1, 2][random.usize(0..5)];
        RecordedRequest { bytes, lower, freed, upper: freed + random.u64(0..2), arena }
    };
    let requests: Vec<RecordedRequest> = starts.into_iter().map(&mut request).collect();
    let released = requests.iter().filter(|request| request.arena == 2).map(|request| request.upper).max();
    let arenas = vec![arena(0, false, u64::MAX), arena(1, false, u64::MAX), arena(0, true, released.unwrap_or(0) + 1)];
    RecordedRequests { requests, arenas, floor_bytes: 0 }
}

#[test]
fn few_requests_of_streams_are_placed_lowest_and_never_below_the_bound() {
    let mut at_bound = 0;
    for seed in 0..150 {
        let requests = few_requests_of_streams(&mut fastrand::Rng::with_seed(seed));
        let reuses = reuse::reuses(&requests);
        let bound = reuse::lower_bound_bytes(&reuses);
        let sizes: Vec<u64> = reuses.iter().map(|reuse| reuse.bytes).collect();
        let excludes = |one: usize, other: usize| reuses[one].excludes(&reuses[other]);
        let lowest = lowest(&sizes, &excludes, &mut vec![None; sizes.len()]);
        assert!(bound <= lowest, "seed {seed}: {bound} {lowest}");
        at_bound += u64::from(bound == lowest);
        let mut packer = DevicePacker::new(requests).expect("the requests are valid");
        let state = packer.advance(300_000_000);
        check_reuses(&reuses, &packer.placement(), state.height_bytes);
        assert_eq!(state.height_bytes, lowest, "seed {seed}: {state:?}");
    }
    assert!(at_bound >= 140, "{at_bound}");
}

/// Checks that requests that need different memory have different memory, below `height_bytes`.
fn check_reuses(reuses: &[Reuse], placement: &[PlacedRequest], height_bytes: u64) {
    assert_eq!(reuses.len(), placement.len());
    let end = |index: usize| placement[index].offset + reuses[index].bytes;
    assert_eq!((0..reuses.len()).map(end).max().unwrap_or(0), height_bytes);
    for one in 0..reuses.len() {
        assert_eq!(reuses[one].number, placement[one].number);
        for other in (0..one).filter(|&other| reuses[one].excludes(&reuses[other])) {
            let is_apart = end(one) <= placement[other].offset || end(other) <= placement[one].offset;
            assert!(is_apart, "{:?} and {:?}", placement[one], placement[other]);
        }
    }
}

#[test]
fn requests_of_busy_streams_are_placed_close_to_the_bound() {
    let mut random = fastrand::Rng::with_seed(5);
    let arena = |stream| RequestArena { stream: StreamId(stream), mempool: MempoolId::default(), released: u64::MAX };
    let mut request = |lower: u64| {
        let bytes = random.u64(1..4096) << if random.u32(0..4) == 0 { 14 } else { 9 };
        let freed = lower + random.u64(1..80);
        RecordedRequest { bytes, lower, freed, upper: freed, arena: random.u32(0..3) }
    };
    let requests: Vec<RecordedRequest> = (0..600).map(&mut request).collect();
    let requests = RecordedRequests { requests, arenas: (0..3).map(arena).collect(), floor_bytes: 0 };
    let reuses = reuse::reuses(&requests);
    let mut packer = DevicePacker::new(requests).expect("the requests are valid");
    let state = packer.advance(100_000_000);
    check_reuses(&reuses, &packer.placement(), state.height_bytes);
    assert!(state.height_bytes * 100 <= state.lower_bound_bytes * 106, "{state:?}");
}
