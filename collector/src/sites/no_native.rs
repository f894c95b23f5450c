//! Stands in for `native` in a build without the feature `native-stacks`: no call stack is
//! recorded.

use std::panic::Location;

use vramscope_trace::{Interner, StackId};

/// Number of a call stack; always [`NONE`](Self::NONE), because this build records no call stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NativeId(pub(super) u32);

impl NativeId {
    /// The number for no stack.
    pub(super) const NONE: Self = Self(0);
}

/// Stands for the walker of call stacks; never constructed, because this build records no call
/// stacks.
#[derive(Debug)]
pub(super) enum Native {}

impl Native {
    /// Would walk this thread's stack; cannot be called, because no [`Native`] exists in this
    /// build.
    pub(super) fn walk(&mut self) -> NativeId {
        match *self {}
    }

    /// Would add a stack to the definitions; cannot be called, because no [`Native`] exists in this
    /// build.
    pub(super) fn stack(&mut self, _: NativeId, _: &Location<'_>, _: &mut Interner) -> StackId {
        match *self {}
    }
}
