//! Whether the functions of the views that the page does not show at first are loaded.
//!
//! In a release, the viewer's WebAssembly is two modules: `cargo xtask build` moves the functions
//! that only the later views need to a second one (`xtask/src/split.rs`). A call of such a function
//! before the engine has loaded that module traps, so the callers check [`is_loaded`] first.
//! Everywhere else (native programs, tests, builds without the second module) all functions are
//! loaded from the start.

use std::cell::Cell;

thread_local! {
    /// Whether a second module exists and is not loaded yet.
    static IS_MISSING: Cell<bool> = const { Cell::new(false) };
    /// Whether a view needs the second module.
    static IS_REQUESTED: Cell<bool> = const { Cell::new(false) };
}

/// Returns true if the functions of the later views can be called.
pub fn is_loaded() -> bool {
    !IS_MISSING.get()
}

/// Requests the functions of the later views; the engine loads them and then draws a frame.
pub fn request() {
    IS_REQUESTED.set(true);
}

/// Returns true if a view needs functions that are not loaded yet.
pub fn is_requested() -> bool {
    IS_REQUESTED.get()
}

/// Sets whether the functions of the later views can be called.
pub fn set_loaded(is_loaded: bool) {
    IS_MISSING.set(!is_loaded);
    IS_REQUESTED.set(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_loaded_unless_the_engine_says_otherwise() {
        assert!(is_loaded() && !is_requested());
        set_loaded(false);
        request();
        assert!(!is_loaded() && is_requested());
        set_loaded(true);
        assert!(is_loaded() && !is_requested());
    }
}
