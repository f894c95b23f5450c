//! Finds the workspaces of cuBLAS among a device's blocks.
//!
//! PyTorch gives each handle and stream a workspace of a fixed size when an operation first needs
//! one, and keeps it. Nothing in a trace entry says so: by its call stack, it is a result of that
//! operation. A block of exactly this size that outlives whole training steps, and that nothing
//! else labels, is taken for one.

/// The blocks of a workspace's size, and how long they have lived.
#[derive(Debug, Default)]
pub(crate) struct WorkspaceCandidates {
    /// Bytes of a workspace; `None` until the first check.
    bytes: Option<u64>,
    blocks: Vec<Candidate>,
}

/// A live block of a workspace's size.
#[derive(Debug)]
struct Candidate {
    address: u64,
    requested: u64,
    /// Number of checks that the block has outlived.
    checks: u32,
}

/// Sizes of a workspace unless the program sets another one: on most GPUs, and from Hopper on.
const DEFAULT_BYTES: [u64; 2] = [(4096 * 2 + 16 * 8) << 10, 32 << 20];

/// Number of checks that a block outlives before it counts as a workspace. Checks are at the ends
/// of steps; results that a program keeps for its next step live as long as one.
const CHECKS: u32 = 2;
/// Maximum number of candidates; a device has one workspace for each handle and stream.
const MAX_CANDIDATES: usize = 256;

impl WorkspaceCandidates {
    /// Tells that the program allocated a block.
    #[inline]
    pub(crate) fn allocated(&mut self, address: u64, requested: u64) {
        let is_candidate = self.bytes.map_or(DEFAULT_BYTES.contains(&requested), |bytes| bytes == requested);
        if is_candidate && self.blocks.len() < MAX_CANDIDATES {
            self.blocks.push(Candidate { address, requested, checks: 0 });
        }
    }

    /// Tells that a block was freed.
    #[inline]
    pub(crate) fn freed(&mut self, address: u64) {
        if !self.blocks.is_empty() {
            self.blocks.retain(|block| block.address != address);
        }
    }

    /// Checks the candidates at the end of a step: sets the size, and returns the addresses of the
    /// blocks that count as workspaces from now on.
    pub(crate) fn check(&mut self, bytes: u64) -> Vec<u64> {
        self.bytes = Some(bytes);
        let mut found = Vec::new();
        self.blocks.retain_mut(|block| {
            block.checks += 1;
            let is_workspace = block.requested == bytes && block.checks >= CHECKS;
            found.extend(is_workspace.then_some(block.address));
            block.requested == bytes && !is_workspace
        });
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_that_outlives_two_checks_is_a_workspace() {
        let mut candidates = WorkspaceCandidates::default();
        for (address, bytes) in [(1, 512), (6, 32 << 20)] {
            candidates.allocated(address, bytes);
        }
        assert!(candidates.check(512).is_empty());
        for (address, bytes) in [(2, 512), (3, 512), (4, 32 << 20)] {
            candidates.allocated(address, bytes);
        }
        assert!(candidates.check(512).is_empty());
        candidates.freed(3);
        candidates.allocated(5, 512);
        assert_eq!(candidates.check(512), [2]);
        assert_eq!(candidates.check(512), [5]);
        assert!(candidates.check(512).is_empty());
    }

    #[test]
    fn block_of_a_default_size_may_be_older_than_the_first_check() {
        let mut candidates = WorkspaceCandidates::default();
        DEFAULT_BYTES.into_iter().zip(1..).for_each(|(bytes, address)| candidates.allocated(address, bytes));
        assert!(candidates.check(32 << 20).is_empty());
        assert_eq!(candidates.check(32 << 20), [2]);
    }
}
