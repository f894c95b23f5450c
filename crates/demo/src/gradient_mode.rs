//! The gradient mode of a thread: whether its operations record gradient graphs.

use std::cell::Cell;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Returns true if this thread's operations record gradient graphs.
#[must_use]
pub fn is_grad_enabled() -> bool {
    ENABLED.get()
}

/// A guard of a change of this thread's gradient mode. Dropping it restores the mode before the
/// change.
#[must_use = "the change ends when this is dropped"]
#[derive(Debug)]
pub struct GradMode {
    outer: bool,
}

/// Stops recording gradient graphs on this thread until the returned guard is dropped, like
/// `torch.no_grad`.
pub fn no_grad() -> GradMode {
    GradMode { outer: ENABLED.replace(false) }
}

/// Records gradient graphs on this thread until the returned guard is dropped, like
/// `torch.enable_grad`.
pub fn enable_grad() -> GradMode {
    GradMode { outer: ENABLED.replace(true) }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        ENABLED.set(self.outer);
    }
}
