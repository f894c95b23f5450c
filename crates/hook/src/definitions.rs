//! The call stacks that a device's tracker has defined, and their sites in a recording.

use std::collections::HashMap;

use vramscope_collector::RecorderHandle;
use vramscope_trace::{Category, Frame, Site, SiteId, StackId};

use crate::modules::Modules;
use crate::record::FrameWord;

/// First part of the scope of requests in the backward pass.
const BACKWARD: &str = "backward";

/// A code object: where a Python function is defined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) file: String,
    pub(crate) function: String,
}

/// A frame of a call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StackFrame {
    /// Number of the code object, from 1.
    pub(crate) code: u32,
    /// The line; 0 if unknown.
    pub(crate) line: u32,
    /// Address of the module whose method the frame runs; 0 if it is none.
    pub(crate) module: u64,
}

/// The call stacks and code objects that a device's tracker has defined, by number from 1. They
/// stay valid until the process ends; their sites are of one recording.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    codes: Vec<Code>,
    /// Frames of each stack, innermost first.
    stacks: Vec<Vec<StackFrame>>,
    /// The sites of each stack in the current recording: of requests, and of the backward pass of
    /// its operations.
    sites: Vec<[Option<SiteId>; 2]>,
    /// The sites that were defined in the current recording.
    defined: HashMap<SiteId, Site>,
    operations: Operations,
    /// Which names of modules the sites use; see [`Modules::generation`].
    generation: u64,
}

impl Definitions {
    /// Adds the code object with the next number.
    pub(crate) fn add_code(&mut self, code: Code) {
        self.codes.push(code);
    }

    /// Sets the frames of the stack with a number, from the words of its definition.
    pub(crate) fn add_stack(&mut self, number: u32, words: &[u64]) {
        let mut words = words.iter();
        let mut frames = Vec::new();
        while let Some(&word) = words.next() {
            let FrameWord { code, line, has_module } = FrameWord::from(word);
            let module = if has_module { words.next().copied().unwrap_or(0) } else { 0 };
            frames.push(StackFrame { code, line, module });
        }
        let index = (number as usize).saturating_sub(1);
        if self.stacks.len() <= index {
            self.stacks.resize(index + 1, Vec::new());
        }
        self.stacks[index] = frames;
    }

    /// Forgets everything about the current recording, whose numbers another one does not have.
    pub(crate) fn end_recording(&mut self) {
        self.sites.clear();
        self.defined.clear();
    }

    /// Returns the site that `site` becomes when its block gets a category and, unless it is empty,
    /// a scope; defines it in the recording of `handle` if it is new.
    pub(crate) fn relabel(
        &mut self,
        site: SiteId,
        category: Category,
        scope: &str,
        handle: &mut RecorderHandle,
    ) -> SiteId {
        let known = self.defined.get(&site).copied().unwrap_or_default();
        let (relabeled, id) = handle.intern(|interner| {
            let scope = if scope.is_empty() { known.scope } else { interner.string(scope) };
            let relabeled = Site { category, scope, ..known };
            (relabeled, interner.site(relabeled))
        });
        self.defined.insert(id, relabeled);
        id
    }

    /// Returns the site of a request in the recording of `handle`, and defines it there if it is
    /// new.
    ///
    /// `stack` is the request's stack, and `sequence` the sequence number of its operation. The
    /// scope is the name of the innermost module on the stack. A request without a stack that
    /// belongs to the backward pass of a known operation gets that operation's stack, and a scope
    /// that begins with `backward`.
    pub(crate) fn site(&mut self, stack: u32, sequence: u32, modules: &Modules, handle: &mut RecorderHandle) -> SiteId {
        let generation = modules.generation();
        if generation != self.generation {
            self.generation = generation;
            self.sites.clear();
        }
        let (stack, is_backward) = match (stack, sequence) {
            (0, 0) => return SiteId(0),
            (0, sequence) => match self.operations.stack(sequence) {
                Some(stack) => (stack, true),
                None => return SiteId(0),
            },
            (stack, 0) => (stack, false),
            (stack, sequence) => {
                self.operations.add(sequence, stack);
                (stack, false)
            }
        };
        let index = stack as usize - 1;
        let known = self.sites.get(index).and_then(|sites| sites[usize::from(is_backward)]);
        known.unwrap_or_else(|| self.define_site(index, is_backward, modules, handle))
    }

    /// Defines the site of the stack at an index in the recording of `handle`.
    #[cold]
    fn define_site(
        &mut self,
        index: usize,
        is_backward: bool,
        modules: &Modules,
        handle: &mut RecorderHandle,
    ) -> SiteId {
        let Self { codes, stacks, sites, defined, .. } = self;
        let frames = stacks.get(index).map_or(&[][..], Vec::as_slice);
        let module = frames.iter().find(|frame| frame.module != 0).and_then(|frame| modules.name(frame.module));
        let scope = match (is_backward, module) {
            (false, module) => module.as_deref().unwrap_or_default().to_owned(),
            (true, None) => BACKWARD.to_owned(),
            (true, Some(module)) => format!("{BACKWARD}/{module}"),
        };
        let (definition, site) = handle.intern(|interner| {
            let mut caller = StackId(0);
            for frame in frames.iter().rev() {
                let code = (frame.code as usize).checked_sub(1).and_then(|index| codes.get(index));
                let (file, function) = code.map_or(("", ""), |code| (&code.file, &code.function));
                let (file, function) = (interner.string(file), interner.string(function));
                let id = interner.frame(Frame { function, file, line: frame.line });
                caller = interner.stack(id, caller);
            }
            let definition = Site { stack: caller, scope: interner.string(&scope), ..Site::default() };
            (definition, interner.site(definition))
        });
        defined.insert(site, definition);
        if sites.len() <= index {
            sites.resize(index + 1, [None; 2]);
        }
        sites[index][usize::from(is_backward)] = Some(site);
        site
    }
}

/// Number of operations whose stacks are kept. A step of a large model has some ten thousand.
const OPERATIONS: usize = 1 << 17;
/// How many operations before that of a backward pass are searched for a stack: an operation that
/// allocates nothing, such as a view, has none.
const SEARCHED_OPERATIONS: u32 = 8;

/// The call stacks of recent forward operations, by sequence number.
#[derive(Debug)]
struct Operations {
    /// Sequence number and stack of each operation, at the number's low bits.
    stacks: Box<[(u32, u32)]>,
}

impl Default for Operations {
    fn default() -> Self {
        Self { stacks: vec![(0, 0); OPERATIONS].into_boxed_slice() }
    }
}

impl Operations {
    /// Adds the first request of an operation. Later requests with the same number may be those of
    /// operations that are not differentiable.
    fn add(&mut self, sequence: u32, stack: u32) {
        let slot = &mut self.stacks[sequence as usize % OPERATIONS];
        if slot.0 != sequence {
            *slot = (sequence, stack);
        }
    }

    /// Returns the stack of an operation, or of one shortly before.
    fn stack(&self, sequence: u32) -> Option<u32> {
        let candidates = (sequence.saturating_sub(SEARCHED_OPERATIONS)..=sequence).rev();
        candidates
            .map(|number| (number, self.stacks[number as usize % OPERATIONS]))
            .find_map(|(number, (known, stack))| (known == number && stack != 0).then_some(stack))
    }
}
