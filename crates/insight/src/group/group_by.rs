//! A property by which blocks are grouped.

/// A property by which blocks are grouped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupBy {
    /// The site: call stack, scope and category.
    #[default]
    Site,
    /// The whole call stack.
    Stack,
    /// The innermost function of the program's own code.
    Function,
    /// The innermost line of the program's own code.
    Line,
    /// The file of that line.
    File,
    /// The scope path, which names the module.
    Module,
    /// The category of the memory: parameter, gradient, activation and others.
    Category,
    /// The stream.
    Stream,
    /// The pool: small or large, default or private.
    Pool,
    /// The block's size, in ranges between powers of two.
    Size,
    /// Forward pass, backward pass or optimizer step.
    Phase,
    /// The innermost operation, such as `linear` or `aten::mm`.
    Operation,
}

impl GroupBy {
    /// All properties, in the order of menus.
    pub const ALL: [Self; 12] = [
        Self::Site,
        Self::Stack,
        Self::Function,
        Self::Line,
        Self::File,
        Self::Module,
        Self::Category,
        Self::Stream,
        Self::Pool,
        Self::Size,
        Self::Phase,
        Self::Operation,
    ];

    /// Returns the name in links, JSON and commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Site => "site",
            Self::Stack => "stack",
            Self::Function => "function",
            Self::Line => "line",
            Self::File => "file",
            Self::Module => "module",
            Self::Category => "category",
            Self::Stream => "stream",
            Self::Pool => "pool",
            Self::Size => "size",
            Self::Phase => "phase",
            Self::Operation => "op",
        }
    }

    /// Returns the grouping with this [`name`](Self::name), or `None`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.name() == name)
    }
}
