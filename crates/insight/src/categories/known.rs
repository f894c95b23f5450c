//! A category, and how certain it is.

use vramscope_trace::Category;

/// How certain a category is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// Lifetimes, sizes and passes tell.
    Likely,
    /// A function in the call stack tells.
    Named,
    /// The program recorded it.
    Recorded,
}

/// The category of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownCategory {
    /// What the memory is for.
    pub category: Category,
    /// How certain that is.
    pub confidence: Confidence,
}
