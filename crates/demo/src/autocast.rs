//! Mixed precision: the data type in which linear layers and convolutions compute.

use std::cell::Cell;

use crate::dtype::DType;

thread_local! {
    /// The data type in which linear layers and convolutions compute on this thread. With `None`
    /// they compute in the data type of their arguments.
    static AUTOCAST: Cell<Option<DType>> = const { Cell::new(None) };
}

/// A guard of a change of mixed precision. Dropping it restores the setting before the change.
#[must_use = "the change ends when this is dropped"]
#[derive(Debug)]
pub struct Autocast {
    outer: Option<DType>,
}

/// Makes linear layers and convolutions on this thread compute in `dtype` until the returned guard
/// is dropped, like `torch.autocast`. Sums, normalization and losses are still computed in `f32`.
pub fn autocast(dtype: DType) -> Autocast {
    set_autocast(Some(dtype))
}

/// Sets mixed precision on this thread, or ends it (`None`), until the returned guard is dropped.
pub(crate) fn set_autocast(dtype: Option<DType>) -> Autocast {
    Autocast { outer: AUTOCAST.replace(dtype) }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        AUTOCAST.set(self.outer);
    }
}

/// Returns the data type of mixed precision on this thread; `None` if it is off.
pub(crate) fn autocast_type() -> Option<DType> {
    AUTOCAST.get()
}
