//! A number of steps that a search may take before it returns to its caller.

/// The steps that remain. A step is about one comparison of two buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    steps: u64,
}

impl Budget {
    /// Creates a budget of `steps` steps.
    pub(super) fn new(steps: u64) -> Self {
        Self { steps }
    }

    /// Takes `steps` from the budget, or all that remain if those are fewer.
    pub(super) fn spend(&mut self, steps: u64) {
        self.steps = self.steps.saturating_sub(steps);
    }

    /// Returns true if no step remains.
    pub(super) fn is_spent(&self) -> bool {
        self.steps == 0
    }

    /// Returns the number of steps that remain.
    pub(super) fn remaining(&self) -> u64 {
        self.steps
    }
}
