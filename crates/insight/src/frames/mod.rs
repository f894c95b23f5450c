//! Call stacks as they are shown: own code marked, library frames folded, nothing cut.
//!
//! Every frame belongs to the recorded program, to a library or to the allocator
//! ([`FrameOrigin`](vramscope_trace::FrameOrigin)). A [`StackView`] shows the program's own frames
//! and folds the runs of other frames between them. A block without a frame to show has a
//! [`WhyNoStack`] instead, which says in a sentence why.

mod editor;
mod facts;
mod missing;
mod operation;
#[cfg(test)]
pub(crate) mod test_definitions;
mod view;

pub use editor::editor_url;
pub use facts::innermost_own_frame;
pub(crate) use facts::{Distributed, EnginePhase, FactsCache, FrameMark, StackFacts};
pub use missing::{RecordedStacks, WhyNoStack, why_no_stack};
pub(crate) use operation::{OperationSource, operation_name};
pub(crate) use view::line_name;
pub use view::{FrameView, StackRow, StackView, folded_label, frame_label, library_name};
