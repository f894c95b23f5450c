//! Sequences of requests with a picture of the pool's segments after each.
//!
//! A line of a script is `operation | picture`. Operations are `a = 3M` (a request, whose block is
//! called `a` from then on; `@2` after it is its stream), `a = 3M !` (a request that must fail with
//! out of memory), `free a` and `empty`. The picture shows the segments in address order, which is
//! the order in which the simulated device provides them: `s[aab.....]` is a segment of the small
//! pool with 256 KiB per letter, `L[aaa.......]` one of the large pool with 2 MiB per letter. A
//! letter is the block at the first byte of its part; `.` is free.

use std::collections::HashMap;

use vramscope_pool::{AllocateError, BlockState, Origin, Pool, SegmentView, Settings, SimulatedDevice};
use vramscope_trace::{DeviceId, NullSink, PoolKind, StreamId};

type SimulatedPool = Pool<SimulatedDevice>;

const MIB: u64 = 1 << 20;

fn pool_of(capacity_bytes: u64) -> SimulatedPool {
    Pool::new(DeviceId(0), Settings::default(), SimulatedDevice::new(capacity_bytes))
}

fn bytes(text: &str) -> u64 {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit {
        "" | "B" => 1,
        "K" => 1 << 10,
        "M" => MIB,
        _ => panic!("unknown unit {unit}"),
    };
    number.parse::<u64>().expect("the size is a number") * unit
}

fn draw_segment(segment: &SegmentView, names: &HashMap<u64, &str>) -> String {
    let (mark, cell) = if segment.pool.kind == PoolKind::Small { ('s', 256 << 10) } else { ('L', 2 * MIB) };
    let starts = (0..segment.size / cell).map(|number| segment.address + number * cell);
    let letter = |start| {
        let block = segment.blocks.iter().rfind(|block| block.address <= start).expect("blocks cover the segment");
        if block.state != BlockState::Free { names[&block.address] } else { "." }
    };
    format!("{mark}[{}]", starts.map(letter).collect::<String>())
}

/// Runs a script on a device of `capacity_bytes` and checks the picture after each line.
fn check(capacity_bytes: u64, script: &str) -> SimulatedPool {
    let mut pool = pool_of(capacity_bytes);
    let mut addresses: HashMap<&str, u64> = HashMap::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (operation, picture) = line.split_once('|').expect("each line has a bar");
        match operation.split_whitespace().collect::<Vec<_>>()[..] {
            ["empty"] => pool.empty_cache(Origin::default(), &mut NullSink).expect("the device releases segments"),
            ["free", name] => {
                let address = addresses.remove(name).expect("the name is in use");
                pool.free(address, Origin::default(), &mut NullSink).expect("the block is allocated");
            }
            [name, "=", size, ref rest @ ..] => {
                let stream = rest
                    .iter()
                    .find_map(|word| word.strip_prefix('@'))
                    .map_or(0, |number| number.parse().expect("a stream number"));
                let result = pool.allocate(bytes(size), StreamId(stream), Origin::default(), &mut NullSink);
                if rest.contains(&"!") {
                    assert!(matches!(result, Err(AllocateError::OutOfMemory(_))), "{line}: {result:?}");
                } else {
                    addresses.insert(name, result.expect("enough memory").expect("the request is not empty").address);
                }
            }
            _ => panic!("cannot read {line}"),
        }
        let names = addresses.iter().map(|(&name, &address)| (address, name)).collect();
        let drawn: Vec<String> = pool.segments().iter().map(|segment| draw_segment(segment, &names)).collect();
        assert_eq!(drawn.join(" "), picture.trim(), "after {line}");
    }
    pool
}

#[test]
fn small_requests_share_a_segment() {
    check(
        100 * MIB,
        "a = 1M     | s[aaaa....]
         b = 512K   | s[aaaabb..]
         c = 256K   | s[aaaabbc.]
         d = 512K   | s[aaaabbc.] s[dd......]",
    );
}

#[test]
fn smallest_fitting_block_is_used() {
    check(
        100 * MIB,
        "a = 768K   | s[aaa.....]
         b = 256K   | s[aaab....]
         c = 512K   | s[aaabcc..]
         d = 256K   | s[aaabccd.]
         free a     | s[...bccd.]
         free c     | s[...b..d.]
         e = 512K   | s[...beed.]
         f = 256K   | s[...beedf]
         g = 256K   | s[g..beedf]",
    );
}

#[test]
fn lowest_of_equal_blocks_is_used() {
    check(
        100 * MIB,
        "a = 256K   | s[a.......]
         b = 256K   | s[ab......]
         c = 256K   | s[abc.....]
         d = 256K   | s[abcd....]
         free c     | s[ab.d....]
         free a     | s[.b.d....]
         e = 256K   | s[eb.d....]",
    );
}

#[test]
fn free_neighbors_are_merged() {
    check(
        100 * MIB,
        "a = 512K   | s[aa......]
         b = 512K   | s[aabb....]
         c = 512K   | s[aabbcc..]
         free a     | s[..bbcc..]
         free c     | s[..bb....]
         free b     | s[........]
         d = 1M     | s[dddd....]",
    );
}

#[test]
fn large_remainder_up_to_one_mib_is_not_split_off() {
    check(
        100 * MIB,
        "a = 4M         | L[aa........]
         free a         | L[..........]
         b = 19M        | L[bbbbbbbbbb]
         c = 1048577B   | L[bbbbbbbbbb] L[c.........]",
    );
    // With a remainder one step larger, it is split off, and `c` fits there.
    check(
        100 * MIB,
        "a = 4M         | L[aa........]
         free a         | L[..........]
         b = 19922432B  | L[bbbbbbbbbb]
         c = 1048577B   | L[bbbbbbbbbb]",
    );
}

#[test]
fn large_requests_get_dedicated_segments() {
    check(
        100 * MIB,
        "a = 11M    | L[aaaaaa]
         b = 10M    | L[aaaaaa] L[bbbbb]
         free a     | L[......] L[bbbbb]
         c = 2M     | L[c.....] L[bbbbb]",
    );
}

#[test]
fn small_requests_never_use_large_segments() {
    check(
        100 * MIB,
        "a = 4M     | L[aa........]
         free a     | L[..........]
         b = 1M     | L[..........] s[bbbb....]",
    );
}

#[test]
fn streams_do_not_share_free_blocks() {
    check(
        100 * MIB,
        "a = 1M @1  | s[aaaa....]
         b = 1M @2  | s[aaaa....] s[bbbb....]
         free a     | s[........] s[bbbb....]
         c = 1M @2  | s[........] s[bbbbcccc]
         d = 1M @2  | s[........] s[bbbbcccc] s[dddd....]
         e = 1M @1  | s[eeee....] s[bbbbcccc] s[dddd....]",
    );
}

#[test]
fn empty_cache_keeps_segments_in_use() {
    let pool = check(
        100 * MIB,
        "a = 11M    | L[aaaaaa]
         b = 1M     | L[aaaaaa] s[bbbb....]
         c = 4M     | L[aaaaaa] s[bbbb....] L[cc........]
         free a     | L[......] s[bbbb....] L[cc........]
         empty      | s[bbbb....] L[cc........]
         free b     | s[........] L[cc........]
         free c     | s[........] L[..........]
         empty      |",
    );
    assert_eq!(pool.stats().reserved_bytes.all.current, 0);
    assert_eq!(pool.stats().num_device_free, 3);
}

#[test]
fn cache_is_released_before_a_request_fails() {
    let pool = check(
        40 * MIB,
        "a = 20M    | L[aaaaaaaaaa]
         b = 4M     | L[aaaaaaaaaa] L[bb........]
         free a     | L[..........] L[bb........]
         c = 20M    | L[cccccccccc] L[bb........]
         free c     | L[..........] L[bb........]
         d = 24M !  | L[bb........]
         e = 12M    | L[bbeeeeee..]
         f = 20M    | L[bbeeeeee..] L[ffffffffff]
         g = 1M !   | L[bbeeeeee..] L[ffffffffff]",
    );
    assert_eq!((pool.stats().num_alloc_retries, pool.stats().num_ooms), (2, 2));
}

#[test]
fn max_non_split_rounding_defaults_to_the_large_segment_size() {
    let check = |conf: &str, free_mib: u64, is_taken: bool| {
        let settings = Settings::parse(conf).expect("test settings are valid");
        let mut pool = Pool::new(DeviceId(0), settings, SimulatedDevice::new(1 << 30));
        let mut allocate_and_free = |mib| {
            let result = pool.allocate(mib * MIB, StreamId(0), Origin::default(), &mut NullSink);
            let address = result.expect("enough memory").expect("the request is not empty").address;
            pool.free(address, Origin::default(), &mut NullSink).expect("the block is allocated");
            pool.stats().segment.all.current
        };
        assert_eq!(allocate_and_free(free_mib), 1);
        assert_eq!(allocate_and_free(104), if is_taken { 1 } else { 2 }, "{free_mib} MiB under {conf}");
    };
    // PyTorch 2.11's decisions on a GPU: `non_split_rounding` in tests/gpu/snapshot.py.
    for (free_mib, is_taken) in [(112, true), (140, true), (180, false)] {
        check("large_segment_size_mb:64,max_split_size_mb:100", free_mib, is_taken);
    }
    check("max_split_size_mb:100", 140, false);
    check("max_split_size_mb:100,max_non_split_rounding_mb:64", 140, true);
}
