//! Call stacks in a build without the feature `native-stacks`: there are none.

use std::panic::Location;

use vramscope_trace::{Interner, StackId};

/// Number of a call stack; always [`NONE`](Self::NONE) in this build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NativeId(pub(super) u32);

impl NativeId {
    pub(super) const NONE: Self = Self(0);
}

/// Never constructed.
#[derive(Debug)]
pub(super) enum Native {}

impl Native {
    pub(super) fn walk(&mut self) -> NativeId {
        match *self {}
    }

    pub(super) fn stack(&mut self, _: NativeId, _: &Location<'_>, _: &mut Interner) -> StackId {
        match *self {}
    }
}
