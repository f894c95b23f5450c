//! Tests of the packer with all its searches.

use super::{Buffer, Packer, PackingState, check_placement};

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
fn nothing_to_place_is_done() {
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

#[test]
fn few_buffers_are_placed_lowest() {
    // Brute force: every order, each buffer as low as possible, reaches the lowest height.
    fn lowest(buffers: &[Buffer], offsets: &mut Vec<Option<u64>>) -> u64 {
        let mut best = u64::MAX;
        for index in 0..buffers.len() {
            if offsets[index].is_some() {
                continue;
            }
            let overlaps = |other: &Buffer| other.lower < buffers[index].upper && buffers[index].lower < other.upper;
            let mut taken: Vec<(u64, u64)> = buffers
                .iter()
                .zip(offsets.iter())
                .filter_map(|(other, offset)| offset.filter(|_| overlaps(other)).map(|at| (at, at + other.size)))
                .collect();
            taken.sort_unstable();
            let mut at = 0;
            for (start, end) in taken {
                if start >= at + buffers[index].size {
                    break;
                }
                at = at.max(end);
            }
            offsets[index] = Some(at);
            best = best.min(lowest(buffers, offsets));
            offsets[index] = None;
        }
        if best < u64::MAX {
            return best;
        }
        buffers.iter().zip(offsets.iter()).map(|(buffer, at)| at.unwrap_or(0) + buffer.size).max().unwrap_or(0)
    }
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
        assert_eq!(state.height_bytes, lowest(&buffers, &mut vec![None; buffers.len()]), "seed {seed}");
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
