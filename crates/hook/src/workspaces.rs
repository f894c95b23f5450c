//! Finds the workspaces of cuBLAS among a device's blocks.
//!
//! PyTorch allocates a workspace of a fixed size for each cuBLAS handle and stream when an
//! operation first needs one, and keeps it. A trace entry does not identify a workspace: its call
//! stack is that of the operation. So a block of exactly this size that outlives whole training
//! steps, and that has no other category, counts as a workspace.

/// The live blocks that have the size of a workspace, and how many steps each has outlived.
#[derive(Debug, Default)]
pub(crate) struct WorkspaceCandidates {
    /// Bytes of a workspace; `None` until the first check.
    bytes: Option<u64>,
    blocks: Vec<Candidate>,
}

/// A live block that has the size of a workspace.
#[derive(Debug)]
struct Candidate {
    address: u64,
    requested: u64,
    /// Number of checks that the block has outlived.
    checks: u32,
}

/// Sizes of a workspace unless the program sets another one: on most GPUs, and from Hopper on.
const DEFAULT_BYTES: [u64; 2] = [(4096 * 2 + 16 * 8) << 10, 32 << 20];

/// Number of checks that a block must outlive to count as a workspace. A check is at the end of
/// each step. One check is not enough: a program may keep a result for its next step.
const CHECKS: u32 = 2;
/// Maximum number of candidates; further blocks are ignored. A device has one workspace for each
/// handle and stream.
const MAX_CANDIDATES: usize = 256;

impl WorkspaceCandidates {
    /// Adds a block that the program allocated, if it has the size of a workspace.
    #[inline]
    pub(crate) fn allocated(&mut self, address: u64, requested: u64) {
        let is_candidate = self.bytes.map_or(DEFAULT_BYTES.contains(&requested), |bytes| bytes == requested);
        if is_candidate && self.blocks.len() < MAX_CANDIDATES {
            self.blocks.push(Candidate { address, requested, checks: 0 });
        }
    }

    /// Removes a block that was freed.
    #[inline]
    pub(crate) fn freed(&mut self, address: u64) {
        if !self.blocks.is_empty() {
            self.blocks.retain(|block| block.address != address);
        }
    }

    /// Counts a step that the candidates have outlived, and returns the addresses of the blocks
    /// that count as workspaces from now on. `bytes` is the size of a workspace; candidates of
    /// another size are removed.
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
