//! How large a block is for a request: the pool's rules, for requests that come from a file.

use vramscope_pool::{MAX_REQUEST_BYTES, Settings, size};
use vramscope_trace::{DeviceId, PoolKind};

/// The rules by which a device's allocator sizes blocks.
#[derive(Clone, Debug)]
pub(super) struct Rules {
    settings: Settings,
    is_host: bool,
}

impl Rules {
    pub(super) fn new(settings: Settings, device: DeviceId) -> Self {
        Self { settings, is_host: device == DeviceId::HOST }
    }

    /// The size that a request is rounded up to. One that no allocator would look at stays as it is.
    pub(super) fn rounded(&self, requested: u64) -> u64 {
        if requested > MAX_REQUEST_BYTES {
            requested
        } else if self.is_host {
            requested.next_power_of_two()
        } else {
            size::block_size(&self.settings, requested)
        }
    }

    /// The size of the block that a request gets from `room` free bytes of a segment; `None` where they are too few.
    ///
    /// PyTorch's allocator of pinned memory makes a segment for each block, of a power of two up to a size that a setting gives and
    /// as large as the request beyond it; out of a segment reserved in advance it takes powers of two.
    pub(super) fn taken(&self, kind: PoolKind, expandable: bool, requested: u64, room: u64) -> Option<u64> {
        let rounded = self.rounded(requested);
        if self.is_host {
            let is_own = room / 2 < rounded;
            return (room >= requested).then_some(if is_own { room } else { rounded });
        }
        let remaining = room.checked_sub(rounded)?;
        let splits = size::splits(&self.settings, kind, expandable, rounded, remaining);
        Some(if splits { rounded } else { room })
    }

    /// Whether a block of a segment may be larger than its rounded request.
    pub(super) fn keeps_tails(&self, kind: PoolKind, expandable: bool) -> bool {
        self.is_host || (kind == PoolKind::Large && !expandable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_request_is_rounded_to_something_that_holds_it() {
        for divisions in [0, 2, 3, u64::MAX] {
            let settings = Settings { roundup_power2_divisions: [divisions; 16], ..Settings::default() };
            for device in [DeviceId(0), DeviceId::HOST] {
                let rules = Rules::new(settings.clone(), device);
                for requested in [0, 1, 1200, MAX_REQUEST_BYTES - 1, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES + 1, u64::MAX]
                {
                    assert!(rules.rounded(requested) >= requested, "{requested} under {divisions} divisions");
                    let taken = rules.taken(PoolKind::Large, false, requested, u64::MAX);
                    assert!(taken.is_some_and(|size| size >= requested), "{requested} under {divisions} divisions");
                }
            }
        }
    }

    #[test]
    fn pinned_memory_comes_in_powers_of_two() {
        let rules = Rules::new(Settings::default(), DeviceId::HOST);
        let taken = |requested, room| rules.taken(PoolKind::Large, false, requested, room);
        assert_eq!(taken(5000, 8192), Some(8192));
        // Above the size up to which requests are rounded, a segment is as large as its request.
        assert_eq!(taken(5000, 5000), Some(5000));
        assert_eq!(taken(5000, 4096), None);
        assert_eq!(taken(5000, 1 << 20), Some(8192));
    }
}
