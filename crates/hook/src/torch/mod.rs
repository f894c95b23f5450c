//! The interface to PyTorch's CUDA caching allocator: the layout of its trace entries in each
//! version, and attaching a tracker.

mod attach;
mod autograd;
mod entry;
mod function;
pub(crate) mod layouts;
mod library;

pub(crate) use attach::{AttachError, attach};
pub(crate) use autograd::Autograd;
pub(crate) use entry::{EntryReader, TraceEntry, actions, is_request};
pub(crate) use layouts::TorchLayout;

/// Returns the layout of PyTorch 2.`minor`; `None` for an unknown version.
pub(crate) fn layout_of(minor: u32) -> Option<&'static TorchLayout> {
    layouts::LAYOUTS.iter().find(|layout| layout.minor == minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout_is_found_by_minor_version() {
        assert_eq!(layout_of(11).map(|layout| layout.minor), Some(11));
        assert_eq!(layout_of(u32::MAX), None);
    }
}
