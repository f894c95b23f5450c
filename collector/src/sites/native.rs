//! Native call stacks: what the program's functions were when it asked for memory.
//!
//! Walking the stack by the tables that a compiler leaves for panics costs some microseconds, more than all else that is recorded of a
//! request; so it is done only where it is asked for. The names of functions are looked up once for each place in the program, at the
//! first stack that goes through it.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

use vramscope_trace::{Frame, FrameId, Interner, StackId};

/// The most frames that are ever looked at.
const MAX_FRAMES: usize = 256;
/// Frames inside this crate, and what it takes to walk the stack, lie above the program's. They are looked at and left out.
const OWN_FRAMES: usize = 32;
/// Different stacks that are told apart. A program that recurses may have any number; those beyond are told by their line alone.
const MAX_STACKS: usize = 1 << 18;

/// A stack that was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NativeId(pub(super) u32);

impl NativeId {
    /// No stack is known.
    pub(super) const NONE: Self = Self(0);
}

/// Walks the stack, and knows those that it has met.
#[derive(Debug)]
pub(super) struct Native {
    max_frames: usize,
    /// The return addresses of the stack that is looked at, the innermost first.
    addresses: Vec<usize>,
    met: HashMap<Box<[usize]>, NativeId>,
    /// Those that were met, in the order of their numbers, from 1 on.
    stacks: Vec<Box<[usize]>>,
    /// The functions at an address, the innermost first: more than one where calls were inlined.
    functions: HashMap<usize, Vec<Function>>,
}

impl Native {
    pub(super) fn new(max_frames: usize) -> Self {
        let (met, stacks, functions) = (HashMap::new(), Vec::new(), HashMap::new());
        Self { max_frames: max_frames.min(MAX_FRAMES), addresses: Vec::new(), met, stacks, functions }
    }

    /// The stack of this thread, now.
    pub(super) fn look(&mut self) -> NativeId {
        let Self { addresses, max_frames, .. } = self;
        addresses.clear();
        backtrace::trace(|frame| {
            addresses.push(frame.ip().addr());
            addresses.len() < *max_frames + OWN_FRAMES
        });
        if let Some(&id) = self.met.get(self.addresses.as_slice()) {
            return id;
        }
        if self.stacks.len() == MAX_STACKS {
            return NativeId::NONE;
        }
        let stack: Box<[usize]> = self.addresses.as_slice().into();
        self.stacks.push(stack.clone());
        let id = NativeId(self.stacks.len() as u32);
        self.met.insert(stack, id);
        id
    }

    /// The stack as a recording has it, the innermost function on top: that which asked at `location`.
    pub(super) fn stack(&mut self, id: NativeId, location: &Location<'_>, interner: &mut Interner) -> StackId {
        let Some(place) = (id.0 as usize).checked_sub(1) else { return StackId(0) };
        let mut functions = Vec::new();
        for &address in self.stacks[place].iter().filter(|&&address| address != 0) {
            functions.extend_from_slice(self.functions.entry(address).or_insert_with(|| named(address, interner)));
        }
        // Above it are this crate's. Where the program was built without lines, their names tell.
        let asks = |function: &Function| function.line == location.line() && function.file.ends_with(location.file());
        match functions.iter().position(asks) {
            Some(first) => drop(functions.drain(..first)),
            None => functions.retain(|function| !function.is_own),
        }
        functions.truncate(self.max_frames);
        functions.iter().rev().fold(StackId(0), |caller, function| interner.stack(function.frame, caller))
    }
}

/// A function on the stack.
#[derive(Clone, Debug)]
struct Function {
    frame: FrameId,
    file: Arc<str>,
    line: u32,
    /// It is of this crate, or of what it needs to look.
    is_own: bool,
}

/// The functions at an address.
fn named(address: usize, interner: &mut Interner) -> Vec<Function> {
    let mut functions = Vec::new();
    let mut add = |name: &str, file: &str, line: u32| {
        let (function, file_name) = (interner.string(name), interner.string(file));
        let frame = interner.frame(Frame { function, file: file_name, line });
        functions.push(Function { frame, file: file.into(), line, is_own: is_own(name) });
    };
    let mut is_named = false;
    // What is returned to is the instruction behind the call; the call itself is before it.
    backtrace::resolve(std::ptr::without_provenance_mut(address - 1), |symbol| {
        let Some(name) = symbol.name() else { return };
        is_named = true;
        let file = symbol.filename().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
        add(&format!("{name:#}"), &file, symbol.lineno().unwrap_or(0));
    });
    if !is_named {
        // As in a library without symbols.
        add(&format!("{address:#x}"), "", 0);
    }
    functions
}

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
        (std::hint::black_box(native.look()), Location::caller())
    }

    #[inline(never)]
    fn outer_function(native: &mut Native) -> Vec<(NativeId, &'static Location<'static>)> {
        let mut looks = Vec::new();
        while looks.len() < std::hint::black_box(2) {
            looks.push(inner_function(native));
        }
        looks
    }

    #[test]
    fn the_same_stack_has_the_same_number() {
        let mut native = Native::new(64);
        let looks = outer_function(&mut native);
        assert_eq!(looks[0], looks[1]);
        assert_ne!(looks[0].0, NativeId::NONE);
        assert_ne!(inner_function(&mut native).0, looks[0].0);
    }

    #[test]
    fn a_stack_begins_with_the_function_that_asked() {
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
