//! The memory that an element of the page, or a pixel of a picture, stands for.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use vramscope_insight::group::GroupBy;
use vramscope_insight::pools::PartKind;
use vramscope_trace::Category;

/// The memory that an element of the page, or a pixel of a picture, stands for. While the pointer
/// is there, pictures and tables light this memory up.
///
/// Its text is in the element's attribute `data-light` and in commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkedMemory {
    /// A part of the device's memory, such as the stuck memory or a category.
    Part(PartKind),
    /// The group of live blocks with a number in a grouping.
    Group(GroupBy, u32),
    /// The blocks of a node of a flame graph of call stacks.
    Call {
        /// The node's [path id](vramscope_insight::flame::FlameNode::path_id).
        path_id: u64,
        /// Whether the graph folds frames of libraries.
        is_folded: bool,
    },
}

/// Names of the two kinds of [calls](LinkedMemory::Call) in texts: in a graph with all frames, and
/// in one with folded frames.
const CALLS: [&str; 2] = ["frames", "call"];

impl LinkedMemory {
    /// Returns true for memory that has all blocks.
    #[must_use]
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Part(PartKind::Reserved | PartKind::Device | PartKind::Recorded))
    }

    /// Returns numbers that identify the memory, for the keys of caches.
    #[must_use]
    pub fn numbers(self) -> [u64; 3] {
        match self {
            Self::Part(PartKind::Category(category)) => [0, 0, category as u64],
            Self::Part(kind) => [0, 1, PartKind::PLAIN.iter().position(|other| *other == kind).unwrap_or(0) as u64],
            Self::Group(by, group) => [1, by as u64, group.into()],
            Self::Call { path_id, is_folded } => [2, is_folded.into(), path_id],
        }
    }
}

impl Display for LinkedMemory {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part(PartKind::Category(category)) => write!(f, "category {}", category.name()),
            Self::Part(kind) => f.write_str(kind.id()),
            Self::Group(by, group) => write!(f, "group {} {group}", by.name()),
            Self::Call { path_id, is_folded } => write!(f, "{} {path_id:x}", CALLS[usize::from(*is_folded)]),
        }
    }
}

impl FromStr for LinkedMemory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("there is no memory called {text:?}");
        let (name, rest) = text.split_once(' ').unwrap_or((text, ""));
        match name {
            "category" => {
                let category = Category::ALL.into_iter().find(|category| category.name() == rest);
                category.map(|category| Self::Part(PartKind::Category(category))).ok_or_else(unknown)
            }
            "group" => {
                let (by, group) = rest.split_once(' ').ok_or_else(unknown)?;
                let group = group.parse().map_err(|_| unknown())?;
                Ok(Self::Group(GroupBy::from_name(by).ok_or_else(unknown)?, group))
            }
            name if CALLS.contains(&name) => {
                let path_id = u64::from_str_radix(rest, 16).map_err(|_| unknown())?;
                Ok(Self::Call { path_id, is_folded: name == CALLS[1] })
            }
            _ => PartKind::PLAIN.into_iter().find(|kind| kind.id() == text).map(Self::Part).ok_or_else(unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_parsed_to_the_memory_that_writes_them() {
        for text in [
            "stuck",
            "releasable",
            "outside",
            "category optimizer state",
            "group line 12",
            "group stack 0",
            "call 1f",
            "frames 0",
        ] {
            assert_eq!(text.parse::<LinkedMemory>().map(|memory| memory.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "category x", "group line", "group x 1", "group line x", "line", "call", "call x"] {
            assert!(text.parse::<LinkedMemory>().is_err(), "{text:?}");
        }
    }
}
