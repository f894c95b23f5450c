//! A limit on memory that several owners share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit on the bytes that several owners use in total. It counts but does not allocate.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    limit: usize,
    used: AtomicUsize,
}

/// The bytes of a [`ByteBudget`] that one owner uses. Dropping it gives them back.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl ByteBudget {
    /// Creates an unused budget of `limit` bytes.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Adds an owner, which uses no bytes yet.
    pub(crate) fn share(self: &Arc<Self>) -> BudgetShare {
        BudgetShare { budget: Arc::clone(self), bytes: 0 }
    }
}

impl BudgetShare {
    /// Sets the number of bytes that the owner uses, even beyond the limit. Returns false if all
    /// owners together then exceed the limit.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let used = &self.budget.used;
        let before = if bytes >= self.bytes {
            used.fetch_add(bytes - self.bytes, Ordering::Relaxed)
        } else {
            used.fetch_sub(self.bytes - bytes, Ordering::Relaxed)
        };
        let now = before + bytes - self.bytes;
        self.bytes = bytes;
        now <= self.budget.limit
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_share_the_limit() {
        let budget = ByteBudget::new(10);
        let (mut first, mut second) = (budget.share(), budget.share());
        assert!(first.set(6) && second.set(4));
        assert!(!second.set(5));
        assert!(first.set(5));
        drop(first);
        assert!(second.set(10));
        assert!(!second.set(11));
    }
}
