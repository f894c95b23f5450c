//! Where in a program memory was asked for: strings, stack frames, call stacks and sites, each sent once and then known by number.
//!
//! Every id space counts from 1 in the order of definition; 0 means "none". A call stack is a list linked from the innermost
//! frame outward, so that stacks that share their outer frames share the memory for them.

use std::collections::HashMap;

/// A defined string; 0 is the empty string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StringId(pub u32);

/// A defined source location; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameId(pub u32);

/// A defined call stack, named by its innermost frame; 0 is the empty stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StackId(pub u32);

/// A defined site; 0 is the unknown one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub u32);

/// What a block is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Category {
    /// Nobody said.
    #[default]
    Unknown,
    /// A model's weights.
    Parameter,
    /// The gradient of a parameter or an activation.
    Gradient,
    /// What an optimizer keeps between steps.
    OptimizerState,
    /// What the forward pass keeps for the backward pass.
    Activation,
    /// Training data.
    Input,
    /// Gone before the operation that made it is.
    Temporary,
    /// A library's scratch memory.
    Workspace,
}

impl Category {
    /// All of them, by number.
    pub const ALL: [Self; 8] = [
        Self::Unknown,
        Self::Parameter,
        Self::Gradient,
        Self::OptimizerState,
        Self::Activation,
        Self::Input,
        Self::Temporary,
        Self::Workspace,
    ];

    /// The name shown to people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Parameter => "parameter",
            Self::Gradient => "gradient",
            Self::OptimizerState => "optimizer state",
            Self::Activation => "activation",
            Self::Input => "input",
            Self::Temporary => "temporary",
            Self::Workspace => "workspace",
        }
    }
}

/// A source location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function.
    pub function: StringId,
    /// The file; empty where the source did not know it.
    pub file: StringId,
    /// The line, from 1; 0 where the source did not know it.
    pub line: u32,
}

/// One link of a call stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Stack {
    /// This frame.
    pub frame: FrameId,
    /// The caller's stack.
    pub caller: StackId,
}

/// Where memory was asked for, and what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Site {
    /// The call stack or the one call location.
    pub stack: StackId,
    /// The path of the scopes that were open, `step/forward/layer3`.
    pub scope: StringId,
    /// What it is for.
    pub category: Category,
    /// The region compiled as a whole (by `torch.compile`) that asked; empty for none.
    pub compile_context: StringId,
}

/// A definition, as a recording carries it. Its number is the next of its kind.
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

/// Everything defined so far. Looking up a number that was never defined gives the empty string, no frame, or the unknown site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions {
    strings: Vec<String>,
    frames: Vec<Frame>,
    stacks: Vec<Stack>,
    sites: Vec<Site>,
}

fn nth<T>(list: &[T], id: u32) -> Option<&T> {
    list.get((id as usize).checked_sub(1)?)
}

impl Definitions {
    /// Adds the next definition of its kind.
    pub fn define(&mut self, definition: Definition) {
        match definition {
            Definition::String(text) => self.strings.push(text),
            Definition::Frame(frame) => self.frames.push(frame),
            Definition::Stack(stack) => self.stacks.push(stack),
            Definition::Site(site) => self.sites.push(site),
        }
    }

    /// The string `id`.
    #[must_use]
    pub fn string(&self, id: StringId) -> &str {
        nth(&self.strings, id.0).map_or("", String::as_str)
    }

    /// The frame `id`.
    #[must_use]
    pub fn frame(&self, id: FrameId) -> Option<Frame> {
        nth(&self.frames, id.0).copied()
    }

    /// The site `id`.
    #[must_use]
    pub fn site(&self, id: SiteId) -> Site {
        nth(&self.sites, id.0).copied().unwrap_or_default()
    }

    /// The frames of the stack `id`, innermost first.
    pub fn stack(&self, id: StackId) -> impl Iterator<Item = Frame> + '_ {
        let mut next = id;
        std::iter::from_fn(move || {
            let stack = nth(&self.stacks, next.0)?;
            // A stack may only name a caller defined before it, so that a damaged recording cannot make a circle.
            next = if stack.caller < next { stack.caller } else { StackId(0) };
            Some(self.frame(stack.frame).unwrap_or_default())
        })
    }

    /// The stack `id` as it was defined: its innermost frame, and the caller's stack; `None` for the empty one.
    #[must_use]
    pub fn link(&self, id: StackId) -> Option<Stack> {
        let stack = nth(&self.stacks, id.0).copied()?;
        Some(Stack { caller: if stack.caller < id { stack.caller } else { StackId(0) }, ..stack })
    }

    /// How many sites there are, the unknown one not counted.
    #[must_use]
    pub fn site_count(&self) -> usize {
        self.sites.len()
    }
}

/// Gives out numbers for strings, frames, stacks and sites, the same one for the same thing, and says what is new.
#[derive(Debug, Default)]
pub struct Interner {
    strings: HashMap<String, StringId>,
    frames: HashMap<Frame, FrameId>,
    stacks: HashMap<Stack, StackId>,
    sites: HashMap<Site, SiteId>,
    fresh: Vec<Definition>,
}

/// The next number of an id space, or "none" where all 2³² are given out.
fn next_id(count: usize) -> u32 {
    u32::try_from(count + 1).unwrap_or(0)
}

impl Interner {
    /// The number of `text`.
    pub fn string(&mut self, text: &str) -> StringId {
        if text.is_empty() {
            return StringId(0);
        }
        if let Some(&id) = self.strings.get(text) {
            return id;
        }
        let id = StringId(next_id(self.strings.len()));
        self.strings.insert(text.to_owned(), id);
        self.fresh.push(Definition::String(text.to_owned()));
        id
    }

    /// The number of `text`, if it has one.
    #[must_use]
    pub fn find(&self, text: &str) -> Option<StringId> {
        if text.is_empty() { Some(StringId(0)) } else { self.strings.get(text).copied() }
    }

    /// The number of a frame.
    pub fn frame(&mut self, frame: Frame) -> FrameId {
        let id = FrameId(next_id(self.frames.len()));
        *self.frames.entry(frame).or_insert_with(|| {
            self.fresh.push(Definition::Frame(frame));
            id
        })
    }

    /// The number of the stack that `frame` makes on top of `caller`.
    pub fn stack(&mut self, frame: FrameId, caller: StackId) -> StackId {
        let stack = Stack { frame, caller };
        let id = StackId(next_id(self.stacks.len()));
        *self.stacks.entry(stack).or_insert_with(|| {
            self.fresh.push(Definition::Stack(stack));
            id
        })
    }

    /// The number of a site; the one about which nothing is known is 0.
    pub fn site(&mut self, site: Site) -> SiteId {
        if site == Site::default() {
            return SiteId(0);
        }
        let id = SiteId(next_id(self.sites.len()));
        *self.sites.entry(site).or_insert_with(|| {
            self.fresh.push(Definition::Site(site));
            id
        })
    }

    /// What was defined since the last call, in order; to be sent before any event that uses it.
    pub fn take_fresh(&mut self) -> Vec<Definition> {
        std::mem::take(&mut self.fresh)
    }
}
