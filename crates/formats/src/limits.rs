//! How much a reader may take.

/// What an input may cost. The default suits snapshots of well over a gigabyte.
///
/// How many things an input may hold is not limited by number: everything that is kept counts towards [`max_bytes`](Self::max_bytes),
/// and no input makes a reader do more work than a constant times its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory for what a reader builds, the input itself not counted. A PyTorch history takes about 50 bytes an entry.
    pub max_bytes: u64,
    /// Bytes that a packed input may unpack to.
    pub max_unpacked_bytes: u64,
    /// How deeply lists and dictionaries may be nested. A snapshot needs 7.
    pub max_depth: u32,
}

impl Default for Limits {
    fn default() -> Self {
        // 3 GiB for what is built and as much for what is unpacked; in wasm32 both share 4 GiB, and the allocation that does not
        // fit there fails before a limit would.
        Self { max_bytes: 3 << 30, max_unpacked_bytes: 3 << 30, max_depth: 100 }
    }
}

/// The memory limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfBudget;

impl std::fmt::Display for OutOfBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("reading this takes more memory than the limit")
    }
}

/// Memory that may still be used.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u64,
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { left: bytes }
    }

    /// Takes `bytes` for good.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), OutOfBudget> {
        self.left = self.left.checked_sub(bytes as u64).ok_or(OutOfBudget)?;
        Ok(())
    }

    pub(crate) fn give_back(&mut self, bytes: usize) {
        self.left += bytes as u64;
    }

    /// Pushes, and pays where the list has to grow. It grows by a quarter: less is wasted at the end of a long list than by doubling.
    #[inline]
    pub(crate) fn push<T>(&mut self, list: &mut Vec<T>, item: T) -> Result<(), OutOfBudget> {
        if list.len() == list.capacity() {
            self.grow(list)?;
        }
        list.push(item);
        Ok(())
    }

    #[cold]
    fn grow<T>(&mut self, list: &mut Vec<T>) -> Result<(), OutOfBudget> {
        let more = (list.capacity() / 4).max(16);
        self.take(more.saturating_mul(size_of::<T>()))?;
        list.try_reserve_exact(more).map_err(|_| OutOfBudget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_pays_for_its_growth() {
        let mut budget = Budget::new(8 * 40);
        let mut list = Vec::<u64>::new();
        let pushed = (0..1000).take_while(|&number| budget.push(&mut list, number).is_ok()).count();
        assert_eq!(pushed, 32);
        assert_eq!(list.len(), 32);
    }
}
