//! The category of memory, and where it comes from.

use vramscope_trace::Category;

/// Where a category comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CategorySource {
    /// The program recorded it.
    #[default]
    Recorded,
    /// It was inferred, see [`categories`](crate::categories).
    Inferred,
}

/// The category of a block's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemoryCategory {
    /// The category; unknown if it was neither recorded nor inferred.
    pub category: Category,
    /// Where it comes from.
    pub source: CategorySource,
}

impl MemoryCategory {
    /// Creates a category that the program recorded.
    #[must_use]
    pub const fn recorded(category: Category) -> Self {
        Self { category, source: CategorySource::Recorded }
    }

    /// Creates a category that was inferred; unknown if nothing told.
    #[must_use]
    pub const fn inferred(category: Category) -> Self {
        Self { category, source: CategorySource::Inferred }
    }

    /// Returns the category's name for users: `gradient`, or `gradient (inferred)`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match (self.source, self.category) {
            (CategorySource::Recorded, category) => category.name(),
            (CategorySource::Inferred, category) => match category {
                Category::Unknown => "unknown",
                Category::Parameter => "parameter (inferred)",
                Category::Gradient => "gradient (inferred)",
                Category::OptimizerState => "optimizer state (inferred)",
                Category::Activation => "activation (inferred)",
                Category::Input => "input (inferred)",
                Category::Temporary => "temporary (inferred)",
                Category::Workspace => "workspace (inferred)",
                Category::Cache => "cache (inferred)",
                Category::Communication => "communication (inferred)",
            },
        }
    }
}

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

/// The category of an allocation that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownCategory {
    /// What the memory is for.
    pub category: Category,
    /// How certain that is.
    pub confidence: Confidence,
}

impl From<Option<KnownCategory>> for MemoryCategory {
    fn from(known: Option<KnownCategory>) -> Self {
        match known {
            Some(KnownCategory { category, confidence: Confidence::Recorded }) => Self::recorded(category),
            Some(KnownCategory { category, .. }) => Self::inferred(category),
            None => Self::inferred(Category::Unknown),
        }
    }
}
