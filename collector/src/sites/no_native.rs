//! Call stacks in a build without the feature `native-stacks`: there are none.

use std::panic::Location;

use vramscope_trace::{Interner, StackId};

/// Number of a call stack; always [`NONE`](Self::NONE) in this build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NativeId(pub(super) u32);

impl NativeId {
    /// The number that no stack has.
    pub(super) const NONE: Self = Self(0);
}

/// Walks call stacks. Never constructed in this build.
#[derive(Debug)]
pub(super) enum Native {}

impl Native {
    /// Walks this thread's stack and returns its number.
    pub(super) fn walk(&mut self) -> NativeId {
        match *self {}
    }

    /// Returns the stack with this number as a stack of the recording.
    pub(super) fn stack(&mut self, _: NativeId, _: &Location<'_>, _: &mut Interner) -> StackId {
        match *self {}
    }
}
