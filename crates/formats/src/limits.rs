//! Limits of a reader's memory and input.

/// Limits on the memory and nesting that an input may require; an import that exceeds one fails.
///
/// The default suits snapshots of well over a gigabyte. The number of entries is not limited
/// separately: all data that is kept counts towards [`max_bytes`](Self::max_bytes), and the work is
/// linear in the length of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory that a reader may allocate, in bytes, without the input itself. A PyTorch history
    /// takes about 50 bytes an entry.
    pub max_bytes: u64,
    /// Size that a packed input may unpack to, in bytes.
    pub max_unpacked_bytes: u64,
    /// Nesting depth of lists and dictionaries. A snapshot needs 7.
    pub max_depth: u32,
}

impl Default for Limits {
    fn default() -> Self {
        // In wasm32 both 3 GiB limits share 4 GiB of address space, and an allocation that does not
        // fit fails before a limit applies.
        Self { max_bytes: 3 << 30, max_unpacked_bytes: 3 << 30, max_depth: 100 }
    }
}

/// The error for input that needs more memory than [`Limits::max_bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reading this file takes more memory than the limit: record a shorter history")]
pub(crate) struct LimitExceeded;

/// The memory that a reader may still allocate, in bytes. Readers subtract the bytes that they
/// allocate, most of it by estimates.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    remaining: u64,
}

impl MemoryBudget {
    /// Creates a budget of `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        Self { remaining: bytes }
    }

    /// Subtracts `bytes` from the budget; fails without effect if it has less.
    pub(crate) fn spend(&mut self, bytes: usize) -> Result<(), LimitExceeded> {
        self.remaining = self.remaining.checked_sub(bytes as u64).ok_or(LimitExceeded)?;
        Ok(())
    }

    /// Adds `bytes` to the budget; their memory was subtracted before and is freed now.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.remaining += bytes as u64;
    }

    /// Appends an item to a list. If the list has to grow, it grows by a quarter and the memory is
    /// subtracted from the budget; fails if the budget has less.
    #[inline]
    pub(crate) fn push<T>(&mut self, list: &mut Vec<T>, item: T) -> Result<(), LimitExceeded> {
        if list.len() == list.capacity() {
            self.grow(list)?;
        }
        list.push(item);
        Ok(())
    }

    /// Reserves space for a quarter more items, at least 16, and subtracts their memory from the
    /// budget; fails if the budget has less.
    #[cold]
    fn grow<T>(&mut self, list: &mut Vec<T>) -> Result<(), LimitExceeded> {
        let more = (list.capacity() / 4).max(16);
        self.spend(more.saturating_mul(size_of::<T>()))?;
        list.try_reserve_exact(more).map_err(|_| LimitExceeded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_a_list_spends_the_budget() {
        let mut budget = MemoryBudget::new(8 * 40);
        let mut list = Vec::<u64>::new();
        let pushed = (0..1000).take_while(|&number| budget.push(&mut list, number).is_ok()).count();
        assert_eq!(pushed, 32);
        assert_eq!(list.len(), 32);
    }
}
