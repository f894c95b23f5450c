//! Flame graphs: live bytes, or bytes allocated in a range, by call stack or by group.
//!
//! [`StackWeights`] sums up blocks by site; [`FlameGraph`] arranges them as a tree: the sites'
//! stacks with the outermost frame at the root, or groups and their parts. The page arranges and
//! colors the nodes.

mod by_group;
mod graph;
mod trie;
mod weights;

pub use graph::{FlameGraph, FlameNode, FlameNodeKind};
pub use weights::{StackKey, StackKeys, StackWeights, Weight};
