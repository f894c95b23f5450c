//! How large a block is for a request: the pool's rules, for requests that come from a file.

use vramscope_pool::{MAX_REQUEST_BYTES, Settings, size};

/// The size that a request is rounded up to. One that no allocator would look at stays as it is.
pub(super) fn rounded(settings: &Settings, requested: u64) -> u64 {
    if requested > MAX_REQUEST_BYTES { requested } else { size::block_size(settings, requested) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_request_is_rounded_to_something_that_holds_it() {
        for divisions in [0, 2, 3, u64::MAX] {
            let settings = Settings { roundup_power2_divisions: [divisions; 16], ..Settings::default() };
            for requested in [0, 1, 1200, MAX_REQUEST_BYTES - 1, MAX_REQUEST_BYTES, MAX_REQUEST_BYTES + 1, u64::MAX] {
                assert!(rounded(&settings, requested) >= requested, "{requested} under {divisions} divisions");
            }
        }
    }
}
