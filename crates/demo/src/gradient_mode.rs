//! Whether operations record what a backward pass needs.

use std::cell::Cell;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Returns true if this thread's operations record graphs.
#[must_use]
pub fn is_grad_enabled() -> bool {
    ENABLED.get()
}

/// A change of this thread's recording of graphs. Dropping it restores what was before.
#[must_use = "the change ends when this is dropped"]
#[derive(Debug)]
pub struct GradMode {
    outer: bool,
}

/// Stops recording graphs on this thread until the result is dropped, as `torch.no_grad`.
pub fn no_grad() -> GradMode {
    GradMode { outer: ENABLED.replace(false) }
}

/// Records graphs on this thread until the result is dropped, as `torch.enable_grad`.
pub fn enable_grad() -> GradMode {
    GradMode { outer: ENABLED.replace(true) }
}

impl Drop for GradMode {
    fn drop(&mut self) {
        ENABLED.set(self.outer);
    }
}
