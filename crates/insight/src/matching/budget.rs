//! The number of steps that finding changed code may take.

/// The remaining number of steps of the search for changed code.
///
/// A step is a comparison of two lines, or of a function with a file, and takes about 20 ns
/// natively. Two versions of a program need some thousand; thousands of renamed functions, which a
/// hostile recording can have, would need 10^12.
#[derive(Debug)]
pub(super) struct Budget {
    remaining: usize,
    is_exceeded: bool,
}

impl Budget {
    /// Creates a budget of this many steps.
    pub(super) fn new(steps: usize) -> Self {
        Self { remaining: steps, is_exceeded: false }
    }

    /// Takes steps for work that is about to be done. Returns false, taking none, if too few
    /// remain: the work must be left out.
    pub(super) fn take(&mut self, steps: usize) -> bool {
        match self.remaining.checked_sub(steps) {
            Some(remaining) => {
                self.remaining = remaining;
                true
            }
            None => {
                self.exceed();
                false
            }
        }
    }

    /// Records that work was left out.
    pub(super) fn exceed(&mut self) {
        self.is_exceeded = true;
    }

    /// Returns true if work was left out.
    pub(super) fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }
}
