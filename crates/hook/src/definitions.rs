//! The call stacks that a device's tracker has defined, and their sites in a recording.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vramscope_collector::RecorderHandle;
use vramscope_trace::{Category, Frame, Site, SiteId, StackId, StringId};

use crate::modules;
use crate::native::Symbols;
use crate::numbered::Numbered;
use crate::record::FrameWord;
use crate::regions::Regions;
use crate::scopes::{self, Scope};

/// First part of the scope path of requests in the backward pass.
const BACKWARD: &str = "backward";

/// A code object: where a Python function is defined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Code {
    /// Address of the code object. After it is freed, another code object may have this address.
    pub(crate) address: u64,
    pub(crate) file: String,
    pub(crate) function: String,
}

/// A frame of a call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackFrame {
    /// A Python frame.
    Python {
        /// Number of the code object, from 1.
        code: u32,
        /// The line; 0 if unknown.
        line: u32,
    },
    /// A C++ frame: an address in the function's code.
    Native { address: u64 },
}

/// A call stack: its frames, and the module whose method runs.
#[derive(Debug)]
struct Stack {
    /// Innermost first.
    frames: Vec<StackFrame>,
    /// The innermost module whose method a frame runs; `None` if no frame runs a module's method.
    module: Option<Module>,
}

/// The name of a module; `None` if the module had no name yet when it made the request.
type Module = Option<Arc<str>>;

/// The names that sites are made of: regions of `torch.compile`, and C++ functions; and what is
/// known of autograd.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) regions: Regions,
    pub(crate) symbols: Symbols,
    /// True while autograd's operations are known to be read correctly.
    pub(crate) trusts_operations: Arc<AtomicBool>,
    /// True once the program has requested memory in a backward pass.
    pub(crate) has_backward: bool,
}

/// The origin of a request as the tracker reports it: stack, autograd operation and scope. The
/// number 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrackedRequest {
    pub(crate) stack: u32,
    /// Low part of the sequence number of autograd's operation.
    pub(crate) sequence: u32,
    /// For a request with Python frames in a backward pass: low part of the sequence number of the
    /// operation whose backward pass it is.
    pub(crate) node: Option<u32>,
    pub(crate) scope: u32,
}

/// The origin of a request: stacks, scope, and whether it is in a backward pass. Requests of equal
/// origin have one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Origin {
    /// Number of the stack with the Python frames; 0 for none.
    stack: u32,
    /// Number of the stack with the C++ frames; 0 for none.
    native: u32,
    /// Number of the forward operation's stack, which determines module and region of a request in
    /// the backward pass; 0 if the request's own stack does.
    forward: u32,
    scope: u32,
    is_backward: bool,
}

impl Origin {
    /// Returns the index of the origin's site among the two sites of a stack in
    /// [`Definitions::sites`]; `None` if the site is in [`Definitions::other_sites`].
    fn kind(self) -> Option<usize> {
        match self {
            Self { stack: 0, .. } => None,
            Self { stack, native, forward: 0, scope: 0, is_backward: false } if native == stack => Some(0),
            Self { native: 0, forward: 0, scope: 0, is_backward: true, .. } => Some(1),
            _ => None,
        }
    }
}

/// The call stacks and code objects that a device's tracker has defined, and their sites in the
/// current recording.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    codes: Numbered<Code>,
    stacks: Numbered<Stack>,
    /// Two sites for each kept stack, for origins that consist of this stack alone: one for its own
    /// requests, and one for requests in the backward pass of its operations.
    sites: Vec<[Option<SiteId>; 2]>,
    /// The sites of other origins.
    other_sites: HashMap<Origin, SiteId>,
    /// The sites that were defined in the current recording.
    defined: HashMap<SiteId, Site>,
    /// For each site whose blocks turned out to be inputs, the site that its later requests get. A
    /// program creates its inputs at one line in every step.
    inputs: HashMap<SiteId, SiteId>,
    operations: Operations,
    /// The generation of the names that the sites use; see [`Regions::generation`].
    generation: u64,
}

impl Definitions {
    /// Adds the code object with the next number.
    pub(crate) fn add_code(&mut self, code: Code) {
        self.codes.push(code);
    }

    /// Adds the stack with the next number. `words` are its frames, in the format of `record`.
    pub(crate) fn add_stack(&mut self, words: &[u64]) {
        let mut words = words.iter();
        let mut frames = Vec::new();
        let mut identity = None;
        while let Some(&word) = words.next() {
            let FrameWord { code, line, has_module } = FrameWord::from(word);
            let second = if has_module { words.next().copied() } else { None };
            frames.push(match code {
                0 => StackFrame::Native { address: second.unwrap_or(0) },
                _ => StackFrame::Python { code, line },
            });
            identity = identity.or(second.filter(|_| code != 0));
        }
        // The name is stored with the stack, because it is forgotten some time after the module is
        // freed. Until then, the name of a module identity never changes.
        self.stacks.push(Stack { frames, module: identity.map(modules::name) });
    }

    /// Returns true if the innermost module of a stack has no name.
    #[inline]
    pub(crate) fn has_unnamed_module(&self, stack: u32) -> bool {
        self.stacks.get(stack).is_some_and(|stack| stack.module == Some(None))
    }

    /// Begins a new generation: the tracker has emptied its tables and defines stacks and code
    /// objects again, with new numbers. The previous generation is kept, because held events and
    /// operations may refer to it.
    pub(crate) fn replace_stacks(&mut self) {
        self.codes.begin_generation();
        self.stacks.begin_generation();
        self.forget_sites();
    }

    /// Forgets all sites, because the next recording numbers its sites anew.
    pub(crate) fn end_recording(&mut self) {
        self.forget_sites();
        self.defined.clear();
        self.inputs.clear();
    }

    /// Removes all sites, so that each is defined again at its next use.
    fn forget_sites(&mut self) {
        self.sites.clear();
        self.other_sites.clear();
    }

    /// Returns a copy of `site` with another category and, unless `scope` is empty, another scope;
    /// defines it in the recording of `handle` if it is new. Returns `site` itself if the category
    /// must not replace the site's own: an input of one module may be a result of another, and only
    /// a block without a category can turn out to be a workspace.
    pub(crate) fn relabel(
        &mut self,
        site: SiteId,
        category: Category,
        scope: &str,
        handle: &mut RecorderHandle,
    ) -> SiteId {
        let known = self.defined.get(&site).copied().unwrap_or_default();
        let keeps_known = match category {
            Category::Input => known.category != Category::Unknown || known.scope != StringId(0),
            Category::Workspace => known.category != Category::Unknown,
            _ => false,
        };
        if keeps_known {
            return site;
        }
        let (relabeled, id) = handle.intern(|interner| {
            let scope = if scope.is_empty() { known.scope } else { interner.string(scope) };
            let relabeled = Site { category, scope, ..known };
            (relabeled, interner.site(relabeled))
        });
        self.defined.insert(id, relabeled);
        if category == Category::Input && site != SiteId(0) {
            self.inputs.insert(site, id);
            self.forget_sites();
        }
        id
    }

    /// Returns the site of a request in the recording of `handle`, and defines it there if it is
    /// new.
    ///
    /// The scope has the names of the program's scopes and that of the innermost module on the
    /// stack. A request of the backward pass of a known operation gets that operation's scope after
    /// `backward`, and its Python frames unless the request has some.
    pub(crate) fn site(&mut self, request: TrackedRequest, names: &mut Names, handle: &mut RecorderHandle) -> SiteId {
        let generation = names.regions.generation();
        if generation != self.generation {
            self.generation = generation;
            self.forget_sites();
        }
        let is_trusted = names.trusts_operations.load(Ordering::Relaxed);
        let origin =
            self.origin(if is_trusted { request } else { TrackedRequest { sequence: 0, node: None, ..request } });
        names.has_backward |= origin.is_backward;
        let known = match (self.site_index(origin), origin) {
            (Some([stack, kind]), _) => self.sites.get(stack).and_then(|sites| sites[kind]),
            (None, Origin { stack: 0, native: 0, scope: 0, .. }) => Some(SiteId(0)),
            (None, _) => self.other_sites.get(&origin).copied(),
        };
        known.unwrap_or_else(|| self.define_site(origin, names, handle))
    }

    /// Returns the origin of a request. If the request belongs to a forward operation, also stores
    /// its stack for the operation's backward pass.
    fn origin(&mut self, request: TrackedRequest) -> Origin {
        let TrackedRequest { stack, sequence, node, scope } = request;
        let has_python = self.frames(stack).last().is_some_and(|frame| matches!(frame, StackFrame::Python { .. }));
        let own = Origin { stack, native: stack, forward: 0, scope, is_backward: false };
        if !has_python && sequence != 0 {
            let forward = self.operations.find(sequence).unwrap_or_default();
            let scope = if scope == 0 { forward.scope } else { scope };
            return Origin { stack: forward.stack, scope, is_backward: true, ..own };
        }
        if sequence != 0 {
            self.operations.add(Operation { sequence, stack, scope });
        }
        match node {
            // With activation checkpointing, the forward pass of a module runs again in the
            // backward pass.
            Some(node) if scope == 0 && self.module(stack).is_none() => {
                let forward = self.operations.find(node).unwrap_or_default();
                Origin { forward: forward.stack, scope: forward.scope, is_backward: true, ..own }
            }
            _ => own,
        }
    }

    /// Returns the indices of an origin's site in `sites`: the stack's index, and the site's index
    /// for that stack. `None` if the site is in `other_sites`.
    #[inline]
    fn site_index(&self, origin: Origin) -> Option<[usize; 2]> {
        Some([self.stacks.index(origin.stack)?, origin.kind()?])
    }

    /// Returns the innermost module of a stack.
    fn module(&self, stack: u32) -> Option<&Module> {
        self.stacks.get(stack)?.module.as_ref()
    }

    /// Returns the frames of a stack, innermost first.
    fn frames(&self, stack: u32) -> &[StackFrame] {
        self.stacks.get(stack).map_or(&[], |stack| &stack.frames)
    }

    /// Defines the site of an origin in the recording of `handle`.
    #[cold]
    fn define_site(&mut self, origin: Origin, names: &mut Names, handle: &mut RecorderHandle) -> SiteId {
        let Origin { stack, native, forward, scope, is_backward } = origin;
        let is_python = |frame: &&StackFrame| matches!(frame, StackFrame::Python { .. });
        let native_frames = self.frames(native).iter().filter(|frame| !is_python(frame));
        let frames: Vec<_> = native_frames.chain(self.frames(stack).iter().filter(is_python)).copied().collect();
        let scopes = scopes::nested(scope);
        let module = self.module(stack).or_else(|| self.module(forward));
        let path = scope_path(module.and_then(Option::as_deref), &scopes, is_backward);
        // A scope's category does not apply to the gradients of its operations.
        let category = scopes.iter().rev().find_map(|scope| scope.category).filter(|_| !is_backward);
        let region = [forward, stack].into_iter().find_map(|stack| names.regions.of_stack(self.functions(stack)));
        let frames = self.named_frames(&frames, &mut names.symbols);
        let (definition, site) = handle.intern(|interner| {
            let mut caller = StackId(0);
            for (function, file, line) in frames.into_iter().rev() {
                let (file, function) = (interner.string(file), interner.string(&function));
                let id = interner.frame(Frame { function, file, line });
                caller = interner.stack(id, caller);
            }
            let definition = Site {
                stack: caller,
                scope: interner.string(&path),
                category: category.unwrap_or_default(),
                compile_context: region.map_or(StringId(0), |region| interner.string(&region)),
            };
            (definition, interner.site(definition))
        });
        self.defined.insert(site, definition);
        let site = self.inputs.get(&site).copied().unwrap_or(site);
        if let Some([stack, kind]) = self.site_index(origin) {
            if self.sites.len() <= stack {
                self.sites.resize(stack + 1, [None; 2]);
            }
            self.sites[stack][kind] = Some(site);
        } else {
            self.other_sites.insert(origin, site);
        }
        site
    }

    /// Returns address, file and name of the Python functions of a stack, innermost first.
    fn functions(&self, stack: u32) -> impl Iterator<Item = (u64, &str, &str)> {
        let codes = self.frames(stack).iter().filter_map(|&frame| self.code(frame));
        codes.map(|code| (code.address, code.file.as_str(), code.function.as_str()))
    }

    /// Returns the code object of a Python frame.
    fn code(&self, frame: StackFrame) -> Option<&Code> {
        let StackFrame::Python { code, .. } = frame else { return None };
        self.codes.get(code)
    }

    /// Returns function, file and line of frames. The allocator's own functions, which are the
    /// innermost frames of every C++ stack, are left out.
    fn named_frames(&self, frames: &[StackFrame], symbols: &mut Symbols) -> Vec<(String, &str, u32)> {
        let mut named = Vec::with_capacity(frames.len());
        for &frame in frames {
            match frame {
                StackFrame::Python { line, .. } => {
                    let (file, function) = self.code(frame).map_or(("", ""), |code| (&code.file, &code.function));
                    named.push((function.to_owned(), file, line));
                }
                StackFrame::Native { address } => {
                    let function = symbols.function(address);
                    if !(named.is_empty() && function.is_allocator) {
                        named.push((function.name.to_string(), "", 0));
                    }
                }
            }
        }
        named
    }
}

/// Returns the path of the scopes and modules of a request.
fn scope_path(module: Option<&str>, scopes: &[Scope], is_backward: bool) -> String {
    let path = scopes::path(scopes, module);
    match (is_backward, path.is_empty()) {
        (false, _) => path,
        (true, true) => BACKWARD.to_owned(),
        (true, false) => format!("{BACKWARD}/{path}"),
    }
}

/// Number of recent forward operations whose stacks are kept. A training step of a large model has
/// some ten thousand operations.
const OPERATIONS: usize = 1 << 17;
/// Maximum number of preceding operations that are searched if an operation has no stack because it
/// allocated nothing, such as a view.
const SEARCHED_OPERATIONS: u32 = 8;

/// A forward operation of autograd, with stack and scope of its first request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Operation {
    /// Low part of the operation's sequence number.
    sequence: u32,
    /// Number of the stack; 0 for an operation that is unknown.
    stack: u32,
    scope: u32,
}

/// Recent forward operations, by sequence number.
#[derive(Debug)]
struct Operations {
    /// The operations, each at the index that the low bits of its sequence number give.
    slots: Box<[Operation]>,
}

impl Default for Operations {
    fn default() -> Self {
        Self { slots: vec![Operation::default(); OPERATIONS].into_boxed_slice() }
    }
}

impl Operations {
    /// Adds an operation at its first request. Later requests with this sequence number are
    /// ignored: they may be those of operations that are not differentiable.
    fn add(&mut self, operation: Operation) {
        let slot = &mut self.slots[operation.sequence as usize % OPERATIONS];
        if slot.sequence != operation.sequence {
            *slot = operation;
        }
    }

    /// Returns the operation with this sequence number, or the last one before it, at most
    /// [`SEARCHED_OPERATIONS`] earlier.
    fn find(&self, sequence: u32) -> Option<Operation> {
        let candidates = (sequence.saturating_sub(SEARCHED_OPERATIONS)..=sequence).rev();
        let mut known = candidates.map(|number| (number, self.slots[number as usize % OPERATIONS]));
        known.find_map(|(number, known)| (known.sequence == number && known.stack != 0).then_some(known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{frame_word, native_frame_word};

    /// Numbers of stacks: of Python and C++ frames, of C++ frames only, of Python frames only.
    const BOTH: u32 = 1;
    const NATIVE: u32 = 2;
    const PYTHON: u32 = 3;

    fn definitions() -> Definitions {
        let mut definitions = Definitions::default();
        let (native, python) = ([native_frame_word(), 0x1000], frame_word(1, 7, false));
        definitions.add_stack(&[native[0], native[1], python]);
        definitions.add_stack(&native);
        definitions.add_stack(&[python]);
        definitions
    }

    /// Returns the origin of a request outside of the backward pass, or in it without Python code.
    fn origin(definitions: &mut Definitions, stack: u32, sequence: u32, scope: u32) -> Origin {
        definitions.origin(TrackedRequest { stack, sequence, node: None, scope })
    }

    #[test]
    fn backward_pass_has_stack_and_scope_of_its_operation() {
        let known = &mut definitions();
        let forward = Origin { stack: BOTH, native: BOTH, scope: 5, ..Origin::default() };
        assert_eq!(origin(known, BOTH, 40, 5), forward);
        let backward = |native, scope| Origin { stack: BOTH, native, forward: 0, scope, is_backward: true };
        assert_eq!(origin(known, 0, 40, 0), backward(0, 5));
        assert_eq!(origin(known, NATIVE, 40, 0), backward(NATIVE, 5));
        assert_eq!(origin(known, NATIVE, 42, 0), backward(NATIVE, 5), "an operation without requests after it");
        assert_eq!(origin(known, 0, 40, 6), backward(0, 6), "the thread has a scope of its own");
        assert_eq!(origin(known, 0, 39, 0), Origin { is_backward: true, ..Origin::default() });
        let unknown = Origin { native: NATIVE, is_backward: true, ..Origin::default() };
        assert_eq!(origin(known, NATIVE, 39, 0), unknown);
    }

    #[test]
    fn python_code_of_the_backward_pass_keeps_its_frames() {
        let known = &mut definitions();
        known.add_stack(&[frame_word(1, 7, true), modules::UNNAMED]);
        origin(known, BOTH, 40, 5);
        let mut in_node = |stack, scope| known.origin(TrackedRequest { stack, sequence: 2, node: Some(40), scope });
        let backward = Origin { stack: PYTHON, native: PYTHON, forward: BOTH, scope: 5, is_backward: true };
        assert_eq!(in_node(PYTHON, 0), backward);
        let own = |stack, scope| Origin { stack, native: stack, scope, ..Origin::default() };
        assert_eq!(in_node(PYTHON, 6), own(PYTHON, 6));
        assert_eq!(in_node(4, 0), own(4, 0), "a module's forward pass runs again");
    }

    #[test]
    fn stack_keeps_the_name_of_a_module_that_is_freed() {
        // No other test uses these addresses: all tests share the table of modules.
        let addresses = [0x6d00_0000_0010, 0x6d00_0000_0020];
        let known = &mut Definitions::default();
        let stack = |identities: &[u64]| -> Vec<u64> {
            identities.iter().flat_map(|&identity| [frame_word(1, 7, true), identity]).collect()
        };
        let [first, outer] = addresses.map(|address| {
            assert!(modules::add(address, &format!("{address:x}")));
            modules::identity(address)
        });
        let (inner, unnamed) = (stack(&[first, outer]), stack(&[modules::UNNAMED, outer]));
        modules::remove(addresses[0]);
        assert!(modules::add(addresses[0], "later"));
        let later = stack(&[modules::identity(addresses[0])]);
        let without_modules = vec![native_frame_word(), 0x1000, frame_word(1, 7, false)];
        [inner, unnamed, later, without_modules].iter().for_each(|words| known.add_stack(words));
        let name = |stack| known.module(stack).map(|module| module.as_deref());
        assert_eq!([1, 2, 3, 4].map(name), [Some(Some("6d0000000010")), Some(None), Some(Some("later")), None]);
        assert_eq!([1, 2, 3, 4, 5].map(|stack| known.has_unnamed_module(stack)), [false, true, false, false, false]);
    }

    #[test]
    fn requests_outside_of_autograd_have_their_own_stack_and_scope() {
        let known = &mut definitions();
        for stack in [0, PYTHON, NATIVE, BOTH, 9] {
            let expected = Origin { stack, native: stack, scope: 3, ..Origin::default() };
            assert_eq!(origin(known, stack, 0, 3), expected);
        }
    }
}
