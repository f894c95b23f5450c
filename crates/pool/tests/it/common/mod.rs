//! Checks of a pool's statistics that several tests share.

use vramscope_pool::{Stat, StatBySize, Stats};
use vramscope_trace::{DeviceState, PoolKind};

/// The expected current values of one size class, counted from all segments and blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recount {
    pub(crate) segment: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) allocation: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) active: u64,
    pub(crate) active_bytes: u64,
    pub(crate) requested_bytes: u64,
    pub(crate) inactive_split: u64,
    pub(crate) inactive_split_bytes: u64,
}

/// Checks that every current value equals the recount of its size class, and that the values of
/// each statistic fit together.
pub(crate) fn check_stats(stats: &Stats, recount: impl Fn(PoolKind) -> Recount) {
    let recounts = [PoolKind::Small, PoolKind::Large].map(recount);
    let expected = |value: fn(&Recount) -> u64| [value(&recounts[0]), value(&recounts[1])];
    let table = [
        ("segment", &stats.segment, expected(|recount| recount.segment)),
        ("reserved_bytes", &stats.reserved_bytes, expected(|recount| recount.reserved_bytes)),
        ("allocation", &stats.allocation, expected(|recount| recount.allocation)),
        ("allocated_bytes", &stats.allocated_bytes, expected(|recount| recount.allocated_bytes)),
        ("active", &stats.active, expected(|recount| recount.active)),
        ("active_bytes", &stats.active_bytes, expected(|recount| recount.active_bytes)),
        ("requested_bytes", &stats.requested_bytes, expected(|recount| recount.requested_bytes)),
        ("inactive_split", &stats.inactive_split, expected(|recount| recount.inactive_split)),
        ("inactive_split_bytes", &stats.inactive_split_bytes, expected(|recount| recount.inactive_split_bytes)),
    ];
    for (name, &StatBySize { all, small_pool, large_pool }, expected) in table {
        assert_eq!([small_pool.current, large_pool.current], expected, "{name} of the small and the large pool");
        assert_eq!(all.current, small_pool.current + large_pool.current, "{name}");
        assert_eq!(all.allocated, small_pool.allocated + large_pool.allocated, "{name}");
        assert_eq!(all.freed, small_pool.freed + large_pool.freed, "{name}");
        for Stat { current, peak, allocated, freed } in [all, small_pool, large_pool] {
            assert_eq!(allocated - freed, current, "{name}");
            assert!(peak >= current, "{name}");
        }
    }
}

/// Checks that the events of a pool, applied from the start, are consistent and give its counters.
pub(crate) fn check_event_counters(device: &DeviceState, stats: &Stats) {
    assert_eq!(device.inconsistencies(), 0, "events are consistent");
    let counters = device.counters();
    assert_eq!(counters.allocated, stats.allocated_bytes.all.current);
    assert_eq!(counters.active, stats.active_bytes.all.current);
    assert_eq!(counters.reserved, stats.reserved_bytes.all.current);
    assert_eq!(counters.requested, stats.requested_bytes.all.current);
    assert_eq!(device.ooms(), stats.num_ooms);
}
