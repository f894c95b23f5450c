//! Walks the Python frames of the current thread, innermost first.

use std::ffi::c_void;

use super::identity::code_identity;
use super::layout::{FIRST_INTERPRETER_OWNER, Layout, OBJECT_TYPE};
use super::memory::{DirectMemory, Memory};

/// Most frames that one walk visits. Outer frames beyond it are left out.
pub(crate) const MAX_FRAMES: usize = 256;

/// Most frames that one walk follows: each Python frame can have a frame of the interpreter above
/// it, which is not visited.
const MAX_STEPS: usize = 2 * MAX_FRAMES;

/// The function `PyGILState_GetThisThreadState`, which returns a `PyThreadState` or null.
///
/// # Safety
/// Any thread may call it while the interpreter exists.
pub(crate) type CurrentThreadState = unsafe extern "C" fn() -> *mut c_void;

/// A Python frame as addresses and numbers, without references to Python objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRef {
    /// Address of the frame's code object, which lives at least as long as the frame.
    pub(crate) code: usize,
    /// A number that distinguishes code objects that had one address at different times, as happens
    /// with generated code; see [`code_identity`].
    pub(crate) code_identity: u64,
    /// Offset in the code's bytecode of the instruction that runs, in bytes (Python's `f_lasti`).
    /// Negative before the first instruction.
    pub(crate) instruction_offset: i32,
    /// Address of the first local variable's object, or 0 if it is not set. The first local is
    /// `self` in a method.
    ///
    /// Use it as an identity only. It is meaningless unless the code has arguments, and it is the
    /// address of a cell if [`first_local_is_cell`](super::CodeFacts::first_local_is_cell).
    pub(crate) first_local: usize,
}

/// A reader of the Python frames of the current thread, which does not need the GIL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameWalker {
    layout: &'static Layout,
    /// Address of `PyCode_Type`.
    code_type: usize,
    current_thread_state: CurrentThreadState,
}

impl FrameWalker {
    /// Creates a walker for the interpreter of this process.
    ///
    /// # Safety
    ///
    /// `code_type` is the address of `PyCode_Type`, and `current_thread_state` is
    /// `PyGILState_GetThisThreadState`, both of the one CPython in this process. Neither is
    /// unloaded as long as the walker is used.
    pub(crate) const unsafe fn new(
        layout: &'static Layout,
        code_type: usize,
        current_thread_state: CurrentThreadState,
    ) -> Self {
        Self { layout, code_type, current_thread_state }
    }

    /// Calls `visit` for each Python frame of the current thread, innermost first, until it returns
    /// false or [`MAX_FRAMES`] frames were visited.
    ///
    /// Visits no frame on a thread that has never run Python code. Needs no GIL: only the thread
    /// itself pushes and pops its frames, and it is here.
    ///
    /// # Safety
    ///
    /// - [`check_frames`](super::check_frames) has confirmed the layout for this interpreter.
    /// - The interpreter is not finalizing.
    /// - The current thread is in a function that Python code called, or runs no Python code. It is
    ///   not in a signal handler, which could interrupt the interpreter between two writes.
    #[inline]
    pub(crate) unsafe fn walk(&self, visit: impl FnMut(FrameRef) -> bool) {
        // SAFETY: `new`'s caller guarantees that this is `PyGILState_GetThisThreadState`, which any
        // thread may call without the GIL. It reads a thread-local variable.
        let thread_state = unsafe { (self.current_thread_state)() };
        // SAFETY: The thread state is null or that of the current thread, alive because the caller
        // guarantees that the interpreter is not finalizing. The caller guarantees the layout too.
        let Ok(()) = unsafe { self.walk_from(&DirectMemory, thread_state.expose_provenance(), visit) };
    }

    /// Returns the address of the current thread's `PyThreadState`; 0 if it has none.
    pub(super) fn thread_state(&self) -> usize {
        // SAFETY: As in `walk`.
        unsafe { (self.current_thread_state)() }.expose_provenance()
    }

    /// Returns the interpreter's layout.
    pub(crate) const fn layout(&self) -> &'static Layout {
        self.layout
    }

    /// Returns the address of `PyCode_Type`.
    pub(super) const fn code_type(&self) -> usize {
        self.code_type
    }

    /// Visits the frames of a thread state, read through `memory`.
    ///
    /// # Errors
    ///
    /// A read of `memory` failed.
    ///
    /// # Safety
    ///
    /// With [`DirectMemory`]: `thread_state` is 0 or the current thread's `PyThreadState`, the
    /// layout is that of the interpreter, and the other requirements of [`Self::walk`] hold.
    #[inline]
    pub(super) unsafe fn walk_from<M: Memory>(
        &self,
        memory: &M,
        thread_state: usize,
        mut visit: impl FnMut(FrameRef) -> bool,
    ) -> Result<(), M::Error> {
        let layout = self.layout;
        if thread_state == 0 {
            return Ok(());
        }
        // SAFETY: The caller guarantees a thread state with this layout.
        let mut frame = unsafe { memory.read_word(thread_state, layout.thread_frame)? };
        if let Some(offset) = layout.cframe_frame {
            if frame == 0 {
                return Ok(());
            }
            // SAFETY: In this layout the thread state points to the cframe of the innermost C call,
            // which is on the stack of this thread, or to the one in the thread state.
            frame = unsafe { memory.read_word(frame, offset)? };
        }
        let mut visited = 0;
        for _ in 0..MAX_STEPS {
            if frame == 0 {
                break;
            }
            // SAFETY: `frame` is not null, so it is a frame of this thread. CPython links a frame
            // after it has set its fields, and unlinks it before it frees it.
            let found = unsafe { self.read_frame(memory, frame)? };
            if let Some(found) = found {
                visited += 1;
                if !visit(found) || visited == MAX_FRAMES {
                    break;
                }
            }
            // SAFETY: As above.
            frame = unsafe { memory.read_word(frame, layout.frame_previous)? };
        }
        Ok(())
    }

    /// Reads one frame. Returns `None` for a frame that the interpreter itself pushed.
    ///
    /// # Errors
    ///
    /// A read of `memory` failed.
    ///
    /// # Safety
    ///
    /// With [`DirectMemory`]: `frame` is a linked frame of the current thread, and the layout is
    /// that of the interpreter.
    #[inline(always)]
    unsafe fn read_frame<M: Memory>(&self, memory: &M, frame: usize) -> Result<Option<FrameRef>, M::Error> {
        let layout = self.layout;
        if let Some(offset) = layout.frame_owner {
            // SAFETY: The caller guarantees a frame with this layout.
            let owner = unsafe { memory.read_byte(frame, offset)? };
            if owner >= FIRST_INTERPRETER_OWNER {
                return Ok(None);
            }
        }
        // SAFETY: As above.
        let code = unsafe { memory.read_word(frame, layout.frame_code)? } & !layout.reference_tags;
        if code == 0 {
            return Ok(None);
        }
        // SAFETY: A linked frame has a reference to its executable, so that is a live object.
        if unsafe { memory.read_word(code, OBJECT_TYPE)? } != self.code_type {
            return Ok(None);
        }
        // SAFETY: It is a code object with this layout.
        let code_identity = unsafe { code_identity(layout, memory, code)? };
        let instruction_offset = match layout.code_bytecode {
            Some(bytecode) => {
                // SAFETY: The caller guarantees a frame with this layout.
                let instruction = unsafe { memory.read_word(frame, layout.frame_instruction)? };
                instruction.wrapping_sub(code).wrapping_sub(bytecode) as i32
            }
            None => {
                // An instruction has 2 bytes.
                // SAFETY: The caller guarantees a frame with this layout.
                unsafe { memory.read_int(frame, layout.frame_instruction)? }.wrapping_mul(2)
            }
        };
        // SAFETY: The caller guarantees a frame with this layout. Its array of locals and of the
        // evaluation stack has at least one element, which CPython may not have written yet.
        let local = unsafe { memory.read_word(frame, layout.frame_first_local)? };
        let tags = layout.reference_tags;
        let is_integer = tags != 0 && local & tags == tags;
        let first_local = if is_integer { 0 } else { local & !tags };
        Ok(Some(FrameRef { code, code_identity, instruction_offset, first_local }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake_interpreter::FakeInterpreter;
    use super::super::layout::LAYOUTS;
    use super::*;

    /// Returns the frames that a walk of the calling thread visits.
    fn walk(walker: &FrameWalker) -> Vec<FrameRef> {
        let mut frames = Vec::new();
        // SAFETY: The fake interpreter has the walker's layout.
        unsafe {
            walker.walk(|frame| {
                frames.push(frame);
                true
            });
        }
        frames
    }

    #[test]
    fn visits_innermost_frame_first() {
        for layout in &LAYOUTS {
            let mut interpreter = FakeInterpreter::new(layout);
            let (outer, inner) = (interpreter.code("a.py", "outer", 1, &[]), interpreter.code("a.py", "inner", 5, &[]));
            interpreter.push_frame(outer, 6, 0x1000);
            interpreter.push_frame(inner, -2, 0);
            let found = walk(&interpreter.walker());
            let facts = |frame: &FrameRef| (frame.code, frame.instruction_offset, frame.first_local);
            let expected = [(inner, -2, 0), (outer, 6, 0x1000)];
            assert_eq!(found.iter().map(facts).collect::<Vec<_>>(), expected, "CPython 3.{}", layout.minor);
        }
    }

    #[test]
    fn skips_frames_of_the_interpreter() {
        for layout in &LAYOUTS {
            let mut interpreter = FakeInterpreter::new(layout);
            let code = interpreter.code("a.py", "f", 1, &[]);
            let none = interpreter.object(16);
            interpreter.push_interpreter_frame(none);
            interpreter.push_frame(code, 2, 0);
            interpreter.push_interpreter_frame(0);
            if layout.frame_owner.is_some() {
                // CPython 3.12 has a code object in its trampoline frames.
                interpreter.push_interpreter_frame(code);
            }
            assert_eq!(walk(&interpreter.walker()).len(), 1, "CPython 3.{}", layout.minor);
        }
    }

    #[test]
    fn tags_of_the_first_local_are_removed() {
        for layout in LAYOUTS.iter().filter(|layout| layout.reference_tags != 0) {
            for (local, expected) in [(0x1000, 0x1000), (0x1001, 0x1000), (1, 0), (0, 0), (0x1003, 0)] {
                let mut interpreter = FakeInterpreter::new(layout);
                let code = interpreter.code("a.py", "f", 1, &[]);
                interpreter.push_frame(code, 0, local);
                assert_eq!(walk(&interpreter.walker())[0].first_local, expected, "{local:#x}");
            }
        }
    }

    #[test]
    fn thread_without_python_frames_has_no_frames() {
        for layout in &LAYOUTS {
            let interpreter = FakeInterpreter::new(layout);
            assert_eq!(walk(&interpreter.walker()), []);
        }
    }

    #[test]
    fn thread_unknown_to_python_has_no_frames() {
        let interpreter = FakeInterpreter::new(&LAYOUTS[0]);
        let walker = interpreter.walker();
        std::thread::spawn(move || assert_eq!(walk(&walker), [])).join().expect("walk");
    }

    #[test]
    fn walk_ends_at_the_greatest_depth() {
        for layout in &LAYOUTS {
            let mut interpreter = FakeInterpreter::new(layout);
            let code = interpreter.code("a.py", "f", 1, &[]);
            for depth in 0..MAX_FRAMES + 10 {
                interpreter.push_interpreter_frame(0);
                interpreter.push_frame(code, depth as i32 * 2, 0);
            }
            let frames = walk(&interpreter.walker());
            assert_eq!(frames.len(), MAX_FRAMES);
            assert_eq!(frames[0].instruction_offset, (MAX_FRAMES as i32 + 9) * 2);
        }
    }

    #[test]
    fn walk_ends_when_the_visitor_returns_false() {
        let mut interpreter = FakeInterpreter::new(&LAYOUTS[2]);
        let code = interpreter.code("a.py", "f", 1, &[]);
        for _ in 0..5 {
            interpreter.push_frame(code, 0, 0);
        }
        let mut visited = 0;
        // SAFETY: The fake interpreter has the walker's layout.
        unsafe {
            interpreter.walker().walk(|_| {
                visited += 1;
                visited < 3
            });
        }
        assert_eq!(visited, 3);
    }
}
