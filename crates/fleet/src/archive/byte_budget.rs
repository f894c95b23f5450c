//! A limit on bytes that several owners share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of bytes that several owners may use together.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    limit: usize,
    used: AtomicUsize,
}

/// The bytes that one owner uses of a budget. Dropping it returns them.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl ByteBudget {
    /// Creates a budget of which nothing is used.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Adds an owner, which uses nothing yet.
    pub(crate) fn share(self: &Arc<Self>) -> BudgetShare {
        BudgetShare { budget: Arc::clone(self), bytes: 0 }
    }
}

impl BudgetShare {
    /// Sets how many bytes the owner uses. Returns false if all owners together use more than the
    /// budget.
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
