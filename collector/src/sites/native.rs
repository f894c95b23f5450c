//! Native call stacks of requests.
//!
//! Walking a stack by the unwind tables takes some microseconds, more than all other recording of a
//! request, so it is off by default. Function names are looked up once for each return address.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use vramscope_trace::{Frame, FrameId, Interner, StackId};

/// Maximum number of frames in a stack; callers beyond it are left out.
const MAX_FRAMES: usize = 256;
/// Number of frames walked beyond the maximum, because this crate's own functions on top of the
/// stack are removed later.
const OWN_FRAMES: usize = 32;
/// Maximum number of different stacks. A recursive program may have any number; beyond the limit, a
/// site contains its source line only.
const MAX_STACKS: usize = 1 << 18;

/// Number of a call stack that [`Native`] has walked; 0 means no stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NativeId(pub(super) u32);

impl NativeId {
    /// The number for no stack: stacks are not recorded, or [`MAX_STACKS`] is reached.
    pub(super) const NONE: Self = Self(0);
}

/// Walks call stacks of this program, numbers them and looks up their functions.
#[derive(Debug)]
pub(super) struct Native {
    max_frames: usize,
    /// Return addresses of the current stack, innermost first.
    addresses: Vec<usize>,
    /// Numbers of the known stacks.
    numbers: HashMap<Box<[usize]>, NativeId>,
    /// The known stacks by number, starting at 1.
    stacks: Vec<Box<[usize]>>,
    /// Functions by return address, innermost first; several if calls were inlined.
    functions: HashMap<usize, Vec<Function>>,
}

impl Native {
    pub(super) fn new(max_frames: usize) -> Self {
        let (numbers, stacks, functions) = (HashMap::new(), Vec::new(), HashMap::new());
        Self { max_frames: max_frames.min(MAX_FRAMES), addresses: Vec::new(), numbers, stacks, functions }
    }

    /// Walks this thread's stack and returns its number; equal stacks have one number. Returns
    /// `NONE` for a new stack beyond [`MAX_STACKS`].
    pub(super) fn walk(&mut self) -> NativeId {
        let Self { addresses, max_frames, .. } = self;
        addresses.clear();
        backtrace::trace(|frame| {
            addresses.push(frame.ip().addr());
            addresses.len() < *max_frames + OWN_FRAMES
        });
        if let Some(&id) = self.numbers.get(self.addresses.as_slice()) {
            return id;
        }
        if self.stacks.len() == MAX_STACKS {
            return NativeId::NONE;
        }
        let stack: Box<[usize]> = self.addresses.as_slice().into();
        self.stacks.push(stack.clone());
        let id = NativeId(self.stacks.len() as u32);
        self.numbers.insert(stack, id);
        id
    }

    /// Adds the stack `id` to the recording's definitions and returns its number there. The stack's
    /// top is the function that made the request at `location`.
    pub(super) fn stack(&mut self, id: NativeId, location: &Location<'_>, interner: &mut Interner) -> StackId {
        let Some(index) = (id.0 as usize).checked_sub(1) else { return StackId(0) };
        let mut functions = Vec::new();
        for &address in self.stacks[index].iter().filter(|&&address| address != 0) {
            functions.extend_from_slice(self.functions.entry(address).or_insert_with(|| resolve(address, interner)));
        }
        // This crate's functions are on top. Without line information they are found by name.
        let is_requesting =
            |function: &Function| function.line == location.line() && function.file.ends_with(location.file());
        match functions.iter().position(is_requesting) {
            Some(first) => drop(functions.drain(..first)),
            None => functions.retain(|function| !function.is_own),
        }
        functions.truncate(self.max_frames);
        functions.iter().rev().fold(StackId(0), |caller, function| interner.stack(function.frame, caller))
    }
}

/// A function on a call stack.
#[derive(Clone, Debug)]
struct Function {
    frame: FrameId,
    file: Arc<str>,
    line: u32,
    /// True for functions of this crate and of `backtrace`.
    is_own: bool,
}

/// Looks up the function at a return address. Returns several functions, innermost first, if calls
/// were inlined.
fn resolve(address: usize, interner: &mut Interner) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut add = |name: &str, file: &str, line: u32| {
        let (function, file_name) = (interner.string(name), interner.string(file));
        let frame = interner.frame(Frame { function, file: file_name, line });
        functions.push(Function { frame, file: file.into(), line, is_own: is_own(name) });
    };
    let mut is_named = false;
    // A return address is after the call instruction, possibly in the next function.
    backtrace::resolve(std::ptr::without_provenance_mut(address - 1), |symbol| {
        let Some(name) = symbol.name() else { return };
        is_named = true;
        let file = symbol.filename().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
        add(&format!("{name:#}"), &file, symbol.lineno().unwrap_or(0));
    });
    if !is_named {
        // The library that contains the address has no symbols.
        add(&format!("{address:#x}"), "", 0);
    }
    functions
}

/// Returns true if the function with this name belongs to this crate or to `backtrace`.
fn is_own(function: &str) -> bool {
    let function = function.trim_start_matches('<').trim_start_matches('&').trim_start_matches("mut ");
    ["vramscope_collector::", "backtrace::"].iter().any(|own| function.starts_with(own))
}

#[cfg(test)]
mod tests {
    use vramscope_trace::Definitions;

    use super::*;

    #[inline(never)]
    #[track_caller]
    fn inner_function(native: &mut Native) -> (NativeId, &'static Location<'static>) {
        (std::hint::black_box(native.walk()), Location::caller())
    }

    #[inline(never)]
    fn outer_function(native: &mut Native) -> Vec<(NativeId, &'static Location<'static>)> {
        let mut walks = Vec::new();
        while walks.len() < std::hint::black_box(2) {
            walks.push(inner_function(native));
        }
        walks
    }

    #[test]
    fn equal_stacks_have_equal_numbers() {
        let mut native = Native::new(64);
        let walks = outer_function(&mut native);
        assert_eq!(walks[0], walks[1]);
        assert_ne!(walks[0].0, NativeId::NONE);
        assert_ne!(inner_function(&mut native).0, walks[0].0);
    }

    #[test]
    fn stack_begins_with_the_requesting_function() {
        let (mut native, mut interner) = (Native::new(64), Interner::default());
        let (id, location) = outer_function(&mut native)[0];
        let stack = native.stack(id, location, &mut interner);
        let mut definitions = Definitions::default();
        interner.take_new().into_iter().for_each(|definition| definitions.define(definition));
        let frames: Vec<_> = definitions.stack(stack).collect();
        let name = |frame: &Frame| definitions.string(frame.function);
        assert!(name(&frames[0]).ends_with("outer_function"), "{}", name(&frames[0]));
        assert_eq!(frames[0].line, location.line());
        assert!(frames.len() > 3 && frames.len() <= 64);
        assert_eq!(native.stack(NativeId::NONE, location, &mut interner), StackId(0));
    }
}
