//! Mixed precision: which type linear layers and convolutions compute in.

use std::cell::Cell;

use crate::dtype::DType;

thread_local! {
    /// The type of linear layers and convolutions on this thread; `None` for that of their
    /// arguments.
    static AUTOCAST: Cell<Option<DType>> = const { Cell::new(None) };
}

/// A change of mixed precision. Dropping it restores what was before.
#[must_use = "the change ends when this is dropped"]
#[derive(Debug)]
pub struct Autocast {
    outer: Option<DType>,
}

/// Computes linear layers and convolutions of this thread in `dtype` until the result is dropped,
/// as `torch.autocast`. Sums, normalization and losses stay in `f32`.
pub fn autocast(dtype: DType) -> Autocast {
    set_autocast(Some(dtype))
}

/// Sets or ends mixed precision on this thread until the result is dropped.
pub(crate) fn set_autocast(dtype: Option<DType>) -> Autocast {
    Autocast { outer: AUTOCAST.replace(dtype) }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        AUTOCAST.set(self.outer);
    }
}

/// Returns the type of mixed precision, if it is on.
pub(crate) fn autocast_type() -> Option<DType> {
    AUTOCAST.get()
}
