//! An interpreter for tests: thread state, frames and objects in memory, laid out as CPython does.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use super::frames::FrameWalker;
use super::layout::{
    BYTES_DATA, FIRST_INTERPRETER_OWNER, HASH, Layout, OBJECT_SIZE, OBJECT_TYPE, TEXT_LENGTH, TEXT_STATE,
    TYPE_INSTANCE_SIZE,
};

/// Size of each object, more than any of them needs.
const OBJECT_BYTES: usize = 512;

thread_local! {
    /// The address that [`current_thread_state`] returns on this thread.
    static THREAD_STATE: Cell<usize> = const { Cell::new(0) };
}

/// Replaces `PyGILState_GetThisThreadState` in tests.
extern "C" fn current_thread_state() -> *mut c_void {
    ptr::with_exposed_provenance_mut(THREAD_STATE.get())
}

/// How a string stores its characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextKind {
    Ascii,
    /// Characters of 1, 2 or 4 bytes behind the header.
    Compact(usize),
    /// Characters of 1, 2 or 4 bytes elsewhere, as in a subclass of `str`.
    Pointer(usize),
}

/// Memory with an interpreter of one layout.
pub(crate) struct FakeInterpreter {
    layout: &'static Layout,
    objects: Vec<Box<[u64]>>,
    code_type: usize,
    thread_state: usize,
    /// Address of the pointer to the innermost frame.
    innermost: usize,
}

impl FakeInterpreter {
    /// Creates an interpreter whose current thread runs no frame.
    pub(crate) fn new(layout: &'static Layout) -> Self {
        let mut this = Self { layout, objects: Vec::new(), code_type: 0, thread_state: 0, innermost: 0 };
        this.code_type = this.object(OBJECT_BYTES);
        this.write_word(this.code_type, TYPE_INSTANCE_SIZE, layout.code_size);
        this.thread_state = this.object(OBJECT_BYTES);
        this.innermost = this.thread_state + layout.thread_frame;
        if let Some(offset) = layout.cframe_frame {
            let cframe = this.object(OBJECT_BYTES);
            this.write_word(this.innermost, 0, cframe);
            this.innermost = cframe + offset;
        }
        this
    }

    /// Returns a walker on which the calling thread has this interpreter's thread state.
    pub(crate) fn walker(&self) -> FrameWalker {
        THREAD_STATE.set(self.thread_state);
        self.walker_without_thread_state()
    }

    /// Returns a walker that leaves the calling thread's thread state as it is.
    pub(crate) fn walker_without_thread_state(&self) -> FrameWalker {
        // SAFETY: The type and the function replace CPython's, and refer to memory of this
        // interpreter.
        unsafe { FrameWalker::new(self.layout, self.code_type, current_thread_state) }
    }

    /// Creates an object of `bytes` zero bytes and returns its address.
    pub(crate) fn object(&mut self, bytes: usize) -> usize {
        self.objects.push(vec![0; bytes.div_ceil(8)].into_boxed_slice());
        self.objects.last_mut().map_or(0, |object| object.as_mut_ptr().expose_provenance())
    }

    /// Writes bytes into an object.
    pub(crate) fn write_bytes(&mut self, object: usize, offset: usize, bytes: &[u8]) {
        let address = object + offset;
        let fits = self.objects.iter().any(|words| {
            let start = words.as_ptr().addr();
            start <= address && address + bytes.len() <= start + 8 * words.len()
        });
        assert!(fits, "write outside an object");
        let target = ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: The bytes are in an object of this interpreter, which exposed its provenance.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Writes a pointer or a `Py_ssize_t`.
    pub(crate) fn write_word(&mut self, object: usize, offset: usize, value: usize) {
        self.write_bytes(object, offset, &value.to_ne_bytes());
    }

    /// Writes a C `int`.
    pub(crate) fn write_int(&mut self, object: usize, offset: usize, value: i32) {
        self.write_bytes(object, offset, &value.to_ne_bytes());
    }

    /// Creates a Python `bytes` object and returns its address.
    pub(crate) fn byte_string(&mut self, bytes: &[u8]) -> usize {
        let object = self.object(BYTES_DATA + bytes.len() + 1);
        self.write_word(object, OBJECT_SIZE, bytes.len());
        self.write_word(object, HASH, usize::MAX);
        self.write_bytes(object, BYTES_DATA, bytes);
        object
    }

    /// Creates a Python `str` object of these code points and returns its address.
    pub(crate) fn text(&mut self, characters: &[u32], kind: TextKind) -> usize {
        let size = match kind {
            TextKind::Ascii => 1,
            TextKind::Compact(size) | TextKind::Pointer(size) => size,
        };
        let data: Vec<u8> =
            characters.iter().flat_map(|character| character.to_le_bytes().into_iter().take(size)).collect();
        let object = self.object(OBJECT_BYTES + data.len());
        self.write_word(object, TEXT_LENGTH, characters.len());
        self.write_word(object, HASH, usize::MAX);
        let (compact, ascii) = (kind != TextKind::Pointer(size), kind == TextKind::Ascii);
        let state = size << 2 | usize::from(compact) << 5 | usize::from(ascii) << 6 | 1;
        self.write_int(object, TEXT_STATE, state as i32);
        match kind {
            TextKind::Ascii => self.write_bytes(object, self.layout.text_ascii_data, &data),
            TextKind::Compact(_) => self.write_bytes(object, self.layout.text_compact_data, &data),
            TextKind::Pointer(_) => {
                let buffer = self.object(data.len());
                self.write_bytes(buffer, 0, &data);
                self.write_word(object, self.layout.text_data_pointer, buffer);
            }
        }
        object
    }

    /// Creates a code object with ASCII names and one argument, and returns its address.
    pub(crate) fn code(&mut self, file_name: &str, name: &str, first_line: i32, line_table: &[u8]) -> usize {
        let code = self.object(OBJECT_BYTES);
        self.write_code(code, file_name, name, first_line, line_table);
        code
    }

    /// Writes a code object at the address `code`, which may replace an earlier code object.
    pub(crate) fn write_code(&mut self, code: usize, file_name: &str, name: &str, first_line: i32, line_table: &[u8]) {
        let layout = self.layout;
        let characters = |text: &str| text.chars().map(u32::from).collect::<Vec<_>>();
        let (file_name, name) = (characters(file_name), characters(name));
        self.write_word(code, OBJECT_TYPE, self.code_type);
        let file_name = self.text(&file_name, TextKind::Ascii);
        self.write_word(code, layout.code_file_name, file_name);
        let name = self.text(&name, TextKind::Ascii);
        self.write_word(code, layout.code_qualified_name.unwrap_or(layout.code_name), name);
        let line_table = self.byte_string(line_table);
        self.write_word(code, layout.code_line_table, line_table);
        self.write_int(code, layout.code_first_line, first_line);
        self.write_int(code, layout.code_argument_count, 1);
        if let Some(offset) = layout.code_version {
            self.write_int(code, offset, self.objects.len() as i32);
        }
    }

    /// Calls a Python function: pushes a frame, and returns its address. `first_local` is the
    /// pointer to write to the first local variable, including its tag bits.
    pub(crate) fn push_frame(&mut self, code: usize, instruction_offset: i32, first_local: usize) -> usize {
        let frame = self.push(code);
        self.write_word(frame, self.layout.frame_first_local, first_local);
        self.write_instruction(frame, code, instruction_offset);
        frame
    }

    /// Sets the current instruction of a frame, as a byte offset in the bytecode of `code`.
    pub(crate) fn write_instruction(&mut self, frame: usize, code: usize, instruction_offset: i32) {
        let layout = self.layout;
        match layout.code_bytecode {
            Some(bytecode) => {
                let instruction = (code + bytecode).wrapping_add_signed(instruction_offset as isize);
                self.write_word(frame, layout.frame_instruction, instruction);
            }
            None => self.write_int(frame, layout.frame_instruction, instruction_offset / 2),
        }
    }

    /// Pushes a frame that belongs to the interpreter itself, with `executable` in place of a code
    /// object.
    pub(crate) fn push_interpreter_frame(&mut self, executable: usize) {
        let frame = self.push(executable);
        if let Some(offset) = self.layout.frame_owner {
            self.write_bytes(frame, offset, &[FIRST_INTERPRETER_OWNER]);
        }
    }

    /// Creates a frame, links it as the innermost one and returns its address.
    fn push(&mut self, executable: usize) -> usize {
        let layout = self.layout;
        let frame = self.object(OBJECT_BYTES);
        let mut previous = [0; 8];
        // SAFETY: The word is in an object of this interpreter.
        unsafe { ptr::copy_nonoverlapping(ptr::with_exposed_provenance(self.innermost), previous.as_mut_ptr(), 8) };
        self.write_bytes(frame, layout.frame_previous, &previous);
        // The lowest tag bit of a reference that does not count has no meaning here.
        self.write_word(frame, layout.frame_code, executable | layout.reference_tags & 1);
        self.write_word(self.innermost, 0, frame);
        frame
    }
}
