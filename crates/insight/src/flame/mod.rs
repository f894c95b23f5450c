//! Flame graphs: live bytes, or bytes allocated in a range, by call stack.
//!
//! [`StackWeights`] sums up blocks by site; [`FlameGraph`] arranges the sites' stacks as a tree
//! with the outermost frame at the root. Layout and colors are the page's.

mod graph;
mod trie;
mod weights;

pub use graph::{FlameGraph, FlameNode, FlameNodeKind};
pub use weights::{StackWeights, Weight};
