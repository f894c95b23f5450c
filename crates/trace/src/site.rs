//! Sites: the call stack, scope and category of memory requests, as numbered definitions.
//!
//! Strings, stack frames, call stacks and sites are written once each and then referred to by
//! number. Each kind is numbered from 1 in the order of definition; 0 means "none". A call stack is
//! a linked list from the innermost frame outwards, so that stacks share their outer frames.

use std::collections::HashMap;

/// The number of a string that a recording defines, from 1; 0 is the empty string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StringId(pub u32);

/// The number of a stack frame that a recording defines, from 1; 0 means no frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// The number of a call stack that a recording defines, from 1; 0 is the empty stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

/// The number of a site that a recording defines, from 1; 0 is the unknown site. A site is where
/// memory was requested: call stack, scope path and category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub u32);

/// The purpose of memory (PyTorch's memory profiler calls it `Category`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Category {
    /// Not recorded.
    #[default]
    Unknown,
    /// A model's weights.
    Parameter,
    /// The gradient of a parameter or an activation.
    Gradient,
    /// State that an optimizer keeps between steps, such as Adam's moments.
    OptimizerState,
    /// Results of the forward pass that the backward pass needs.
    Activation,
    /// Training data.
    Input,
    /// Freed before the operation that requested it ends.
    Temporary,
    /// Scratch memory of a library, for example cuBLAS.
    Workspace,
    /// Keys and values of earlier tokens, which a model keeps while it generates a sequence.
    Cache,
    /// Buffers of collective operations: gathered parameters, buckets of gradients.
    Communication,
}

/// The scope of memory that a source shows only by its totals: allocated before a trace begins, or
/// by threads that it does not follow. What it is for is unknown.
pub const NOT_IN_SOURCE_SCOPE: &str = "not in the trace";

impl Category {
    /// All categories, in the order of their codes in recordings.
    pub const ALL: [Self; 10] = [
        Self::Unknown,
        Self::Parameter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Activation,
        Self::Input,
        Self::Temporary,
        Self::Workspace,
        Self::Cache,
        Self::Communication,
    ];

    /// Returns the category's name for users, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        /// The names, in the order of the categories' codes.
        const NAMES: [&str; 10] = [
            "unknown",
            "parameter",
            "gradient",
            "optimizer state",
            "activation",
            "input",
            "temporary",
            "workspace",
            "cache",
            "communication",
        ];
        NAMES[self as usize]
    }
}

/// A stack frame: one call, with function, file and line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function's name.
    pub function: StringId,
    /// The file's path; the empty string if unknown.
    pub file: StringId,
    /// The line, counted from 1; 0 if unknown.
    pub line: u32,
}

/// A call stack: its innermost frame, and the stack of the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stack {
    /// The innermost frame.
    pub frame: FrameId,
    /// The stack without that frame.
    pub caller: StackId,
}

/// The place in the program that requested memory, and the purpose: a call stack, a scope path and
/// a category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    /// The call stack; a single frame if only the location was recorded.
    pub stack: StackId,
    /// The path of the open scopes, for example `step/forward/layer3`.
    pub scope: StringId,
    /// What the memory is used for.
    pub category: Category,
    /// The `torch.compile` region that made the request; the empty string for none.
    pub compile_context: StringId,
}

/// A string, frame, stack or site that a recording defines. Its number is not stored: each
/// definition gets the next number of its kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Definition {
    /// Defines the next [`StringId`].
    String(String),
    /// Defines the next [`FrameId`].
    Frame(Frame),
    /// Defines the next [`StackId`].
    Stack(Stack),
    /// Defines the next [`SiteId`].
    Site(Site),
}

/// All definitions of a recording, by number.
///
/// Looking up an undefined number returns the empty string, no frame, the empty stack or the
/// unknown site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions {
    strings: Vec<String>,
    frames: Vec<Frame>,
    stacks: Vec<Stack>,
    sites: Vec<Site>,
    /// Bytes of all strings.
    text_bytes: usize,
}

/// Returns the item of `list` with number `id`, counted from 1; `None` for 0 ("none") and unknown
/// numbers.
fn nth<T>(list: &[T], id: u32) -> Option<&T> {
    list.get((id as usize).checked_sub(1)?)
}

impl Definitions {
    /// Adds a definition, which gets the next number of its kind.
    pub fn define(&mut self, definition: Definition) {
        match definition {
            Definition::String(text) => {
                self.text_bytes += text.len();
                self.strings.push(text);
            }
            Definition::Frame(frame) => self.frames.push(frame),
            Definition::Stack(stack) => self.stacks.push(stack),
            Definition::Site(site) => self.sites.push(site),
        }
    }

    /// Returns the string with number `id`; empty if the number is undefined.
    #[must_use]
    pub fn string(&self, id: StringId) -> &str {
        nth(&self.strings, id.0).map_or("", String::as_str)
    }

    /// Returns the frame with number `id`, or `None` if the number is 0 or undefined.
    #[must_use]
    pub fn frame(&self, id: FrameId) -> Option<Frame> {
        nth(&self.frames, id.0).copied()
    }

    /// Returns the site with number `id`; the unknown site if the number is undefined.
    #[must_use]
    pub fn site(&self, id: SiteId) -> Site {
        nth(&self.sites, id.0).copied().unwrap_or_default()
    }

    /// Returns the frames of the stack with number `id`, innermost first; none if the number is
    /// undefined.
    pub fn stack(&self, id: StackId) -> impl Iterator<Item = Frame> + '_ {
        let mut next = id;
        std::iter::from_fn(move || {
            let stack = self.stack_definition(next)?;
            next = stack.caller;
            Some(self.frame(stack.frame).unwrap_or_default())
        })
    }

    /// Returns the innermost frame and the caller's stack of the stack with number `id`, or `None`
    /// for the empty stack.
    #[must_use]
    pub fn stack_definition(&self, id: StackId) -> Option<Stack> {
        let stack = nth(&self.stacks, id.0).copied()?;
        // A caller must be defined before, so that a damaged recording cannot form a cycle.
        Some(Stack { caller: if stack.caller < id { stack.caller } else { StackId(0) }, ..stack })
    }

    /// Iterates over all definitions; each follows the definitions that it refers to.
    pub fn iter(&self) -> impl Iterator<Item = Definition> + '_ {
        let strings = self.strings.iter().cloned().map(Definition::String);
        let frames = self.frames.iter().copied().map(Definition::Frame);
        let stacks = self.stacks.iter().copied().map(Definition::Stack);
        strings.chain(frames).chain(stacks).chain(self.sites.iter().copied().map(Definition::Site))
    }

    /// Returns the number of defined sites, without the unknown site.
    #[must_use]
    pub fn site_count(&self) -> usize {
        self.sites.len()
    }

    /// Returns about how many bytes of memory the definitions take.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.text_bytes
            + size_of_val(self.strings.as_slice())
            + size_of_val(self.frames.as_slice())
            + size_of_val(self.stacks.as_slice())
            + size_of_val(self.sites.as_slice())
    }
}

/// Assigns numbers to strings, frames, stacks and sites, and collects the definitions to record.
///
/// Equal values get one number. Send the definitions of [`take_new`](Self::take_new) to the
/// [`Sink`](crate::Sink) before any event that uses them.
///
/// ```
/// use vramscope_trace::{Category, Definition, Interner, Site};
///
/// let mut interner = Interner::default();
/// let scope = interner.string("step/forward");
/// let site = interner.site(Site { scope, category: Category::Activation, ..Site::default() });
/// assert_eq!(site.0, 1);
/// assert_eq!(interner.take_new()[0], Definition::String("step/forward".to_owned()));
/// ```
#[derive(Debug, Default)]
pub struct Interner {
    strings: HashMap<String, StringId>,
    frames: HashMap<Frame, FrameId>,
    stacks: HashMap<Stack, StackId>,
    sites: HashMap<Site, SiteId>,
    new_definitions: Vec<Definition>,
}

/// Returns the number for the next definition of a kind that has `count` definitions so far; 0
/// ("none") once 32 bits are exhausted.
fn next_id(count: usize) -> u32 {
    u32::try_from(count + 1).unwrap_or(0)
}

impl Interner {
    /// Returns the number of the string `text`, defining it if it is new.
    pub fn string(&mut self, text: &str) -> StringId {
        if text.is_empty() {
            return StringId(0);
        }
        if let Some(&id) = self.strings.get(text) {
            return id;
        }
        let id = StringId(next_id(self.strings.len()));
        self.strings.insert(text.to_owned(), id);
        self.new_definitions.push(Definition::String(text.to_owned()));
        id
    }

    /// Returns the number of the string `text`, or `None` if it is not defined.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<StringId> {
        if text.is_empty() { Some(StringId(0)) } else { self.strings.get(text).copied() }
    }

    /// Returns the number of a frame, defining it if it is new.
    pub fn frame(&mut self, frame: Frame) -> FrameId {
        let id = FrameId(next_id(self.frames.len()));
        *self.frames.entry(frame).or_insert_with(|| {
            self.new_definitions.push(Definition::Frame(frame));
            id
        })
    }

    /// Returns the number of the stack with `frame` called from `caller`, defining it if it is new.
    /// The outermost frame has the empty stack, `StackId(0)`, as its caller.
    pub fn stack(&mut self, frame: FrameId, caller: StackId) -> StackId {
        let stack = Stack { frame, caller };
        let id = StackId(next_id(self.stacks.len()));
        *self.stacks.entry(stack).or_insert_with(|| {
            self.new_definitions.push(Definition::Stack(stack));
            id
        })
    }

    /// Returns the number of a site, defining it if it is new; the default site has number 0.
    pub fn site(&mut self, site: Site) -> SiteId {
        if site == Site::default() {
            return SiteId(0);
        }
        let id = SiteId(next_id(self.sites.len()));
        *self.sites.entry(site).or_insert_with(|| {
            self.new_definitions.push(Definition::Site(site));
            id
        })
    }

    /// Returns the definitions made since the last call, in the order of their numbers.
    pub fn take_new(&mut self) -> Vec<Definition> {
        std::mem::take(&mut self.new_definitions)
    }
}
