//! Compares the frames that the walker finds with those that Python reports, once at start.
//!
//! A patched interpreter can have another layout than its version says. The check reads through
//! [`CheckedMemory`], so a wrong offset is an error, not a crash.

use super::code::{CODE_BUFFER_BYTES, MAX_LINE_TABLE_BYTES, MAX_TEXT_BYTES, read_code};
use super::frames::{FrameWalker, MAX_FRAMES};
use super::layout::TYPE_INSTANCE_SIZE;
use super::memory::{CheckedMemory, Memory, ReadError};

/// A frame as Python reports it, of `sys._getframe()` or one of its `f_back`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedFrame<'a> {
    /// `id(frame.f_code)`
    pub(crate) code: usize,
    /// `frame.f_lasti`. `None` for the innermost frame, which runs on after Python has read the
    /// value.
    pub(crate) instruction_offset: Option<i32>,
    /// `frame.f_lineno`. `None` for the innermost frame, or if Python has no line.
    pub(crate) line: Option<u32>,
    /// `id()` of the first local variable's value. `None` if there is none, or if it is in a cell.
    pub(crate) first_local: Option<usize>,
    /// `frame.f_code.co_filename`. `None` if it is not valid Unicode.
    pub(crate) file_name: Option<&'a str>,
    /// `frame.f_code.co_qualname`, or `co_name` in 3.10. `None` if it is not valid Unicode.
    pub(crate) name: Option<&'a str>,
}

/// The reason why the walker cannot be used with this interpreter.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SelfCheckError {
    /// The size of a code object differs.
    #[error(
        "cannot read Python call stacks: a code object has {found} bytes instead of {expected}: \
         use an unmodified CPython"
    )]
    CodeSize { found: usize, expected: usize },
    /// The current thread has no thread state.
    #[error("cannot read Python call stacks: no Python thread state: start the recorder from Python code")]
    NoThreadState,
    /// Memory was not readable.
    #[error("cannot read Python call stacks: a read of Python's memory failed: use an unmodified CPython")]
    Read(#[from] ReadError),
    /// The number of frames differs.
    #[error("cannot read Python call stacks: found {found} frames instead of {expected}: use an unmodified CPython")]
    FrameCount { found: usize, expected: usize },
    /// A frame differs. Frame 0 is the innermost.
    #[error(
        "cannot read Python call stacks: {field} of frame {index} is {found} instead of {expected}: \
         use an unmodified CPython"
    )]
    Frame { index: usize, field: &'static str, found: String, expected: String },
}

/// Checks that the walker finds exactly the expected frames of the current thread, innermost first.
///
/// Call it from the innermost of the expected frames, with the GIL. Of more than [`MAX_FRAMES`]
/// frames, the innermost are compared.
///
/// # Errors
///
/// [`SelfCheckError`] says which difference was found first, or which read failed. The walker must
/// not be used then.
pub(crate) fn check_frames(walker: &FrameWalker, expected: &[ExpectedFrame<'_>]) -> Result<(), SelfCheckError> {
    let memory = CheckedMemory::new()?;
    let layout = walker.layout();
    // SAFETY: `CheckedMemory` has no requirement.
    let found = unsafe { memory.read_word(walker.code_type(), TYPE_INSTANCE_SIZE)? };
    if found != layout.code_size {
        return Err(SelfCheckError::CodeSize { found, expected: layout.code_size });
    }
    let thread_state = walker.thread_state();
    if thread_state == 0 {
        return Err(SelfCheckError::NoThreadState);
    }
    let mut frames = Vec::with_capacity(MAX_FRAMES);
    // SAFETY: `CheckedMemory` has no requirement.
    unsafe {
        walker.walk_from(&memory, thread_state, |frame| {
            frames.push(frame);
            true
        })?;
    }
    let expected = &expected[..expected.len().min(MAX_FRAMES)];
    let mut buffer = vec![0; CODE_BUFFER_BYTES];
    for (index, (found, expected)) in frames.iter().zip(expected).enumerate() {
        compare(index, "the code object", &address(found.code), &address(expected.code))?;
        if let Some(offset) = expected.instruction_offset {
            // Python reports -1 for any offset before the first instruction.
            let found = found.instruction_offset.max(-1);
            compare(index, "the instruction offset", &found.to_string(), &offset.to_string())?;
        }
        if let Some(local) = expected.first_local {
            compare(index, "the first local variable", &address(found.first_local), &address(local))?;
        }
        // SAFETY: `CheckedMemory` has no requirement.
        let code = unsafe { read_code(walker, &memory, found.code, &mut buffer)? };
        // A line table that was cut has no lines for later instructions.
        let is_whole = code.line_table.len() < MAX_LINE_TABLE_BYTES;
        let line = code.line_table.line_number(found.instruction_offset);
        if let Some(expected) = expected.line
            && (is_whole || line.is_some())
        {
            compare(index, "the line", &line.map_or("none".into(), |line| line.to_string()), &expected.to_string())?;
        }
        for (field, found, expected) in
            [("the file name", code.file_name, expected.file_name), ("the name", code.name, expected.name)]
        {
            if let Some(expected) = expected {
                compare(index, field, found, &expected[..expected.floor_char_boundary(MAX_TEXT_BYTES)])?;
            }
        }
    }
    if frames.len() != expected.len() {
        return Err(SelfCheckError::FrameCount { found: frames.len(), expected: expected.len() });
    }
    Ok(())
}

/// Returns an error if the texts differ.
///
/// # Errors
///
/// [`SelfCheckError::Frame`] with both texts.
fn compare(index: usize, field: &'static str, found: &str, expected: &str) -> Result<(), SelfCheckError> {
    if found == expected {
        return Ok(());
    }
    Err(SelfCheckError::Frame { index, field, found: found.into(), expected: expected.into() })
}

/// Formats an address.
fn address(address: usize) -> String {
    format!("{address:#x}")
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::super::fake_interpreter::FakeInterpreter;
    use super::super::layout::LAYOUTS;
    use super::super::line_table::LineTableFormat;
    use super::*;

    /// Creates an interpreter with two frames, and the frames as Python would report them.
    fn two_frames(layout: &'static super::super::Layout) -> (FakeInterpreter, [ExpectedFrame<'static>; 2]) {
        let mut interpreter = FakeInterpreter::new(layout);
        // The first instructions are on line 11.
        let table: &[u8] = match layout.line_table_format {
            LineTableFormat::LineDeltas => &[20, 1],
            LineTableFormat::Locations => &[0xe8 | 0b111, 2, 0xe8, 0],
        };
        let outer = interpreter.code("/srv/train.py", "main", 10, table);
        let inner = interpreter.code("/srv/model.py", "Model.forward", 10, table);
        let local = interpreter.object(16);
        interpreter.push_interpreter_frame(0);
        interpreter.push_frame(outer, 4, local);
        interpreter.push_frame(inner, 2, 0);
        let expected = [
            ExpectedFrame {
                code: inner,
                instruction_offset: None,
                line: None,
                first_local: None,
                file_name: Some("/srv/model.py"),
                name: Some("Model.forward"),
            },
            ExpectedFrame {
                code: outer,
                instruction_offset: Some(4),
                line: Some(11),
                first_local: Some(local),
                file_name: Some("/srv/train.py"),
                name: Some("main"),
            },
        ];
        (interpreter, expected)
    }

    #[test]
    fn equal_frames_pass() {
        for layout in &LAYOUTS {
            let (interpreter, expected) = two_frames(layout);
            check_frames(&interpreter.walker(), &expected).expect("equal");
        }
    }

    #[test]
    fn each_difference_is_an_error() {
        for layout in &LAYOUTS {
            let (interpreter, [inner, outer]) = two_frames(layout);
            for (expected, message) in [
                (ExpectedFrame { instruction_offset: Some(8), ..outer }, "the instruction offset of frame 1 is 4"),
                (ExpectedFrame { line: Some(12), ..outer }, "the line of frame 1 is 11"),
                (ExpectedFrame { first_local: Some(8), ..outer }, "the first local variable of frame 1 is 0x"),
                (ExpectedFrame { code: 8, ..outer }, "the code object of frame 1 is 0x"),
                (ExpectedFrame { file_name: Some("x"), ..outer }, "the file name of frame 1 is /srv/train.py"),
                (ExpectedFrame { name: Some("x"), ..outer }, "the name of frame 1 is main"),
            ] {
                let error = check_frames(&interpreter.walker(), &[inner, expected]).expect_err("different");
                let start = format!("cannot read Python call stacks: {message}");
                assert!(error.to_string().starts_with(&start), "{error}");
            }
            let error = check_frames(&interpreter.walker(), &[inner]).expect_err("one frame too many");
            assert!(error.to_string().contains("found 2 frames instead of 1"), "{error}");
        }
    }

    #[test]
    fn other_layout_is_an_error() {
        for layout in &LAYOUTS {
            let (mut interpreter, expected) = two_frames(layout);
            let walker = interpreter.walker();
            interpreter.write_word(walker.code_type(), TYPE_INSTANCE_SIZE, 1000);
            let error = check_frames(&walker, &expected).expect_err("other size");
            assert!(error.to_string().contains("a code object has 1000 bytes"), "{error}");
        }
    }

    #[test]
    fn unreadable_memory_is_an_error() {
        let (mut interpreter, expected) = two_frames(&LAYOUTS[3]);
        interpreter.push_frame(16, 0, 0);
        let error = check_frames(&interpreter.walker(), &expected).expect_err("unreadable");
        assert!(matches!(error, SelfCheckError::Read(_)), "{error}");
        assert!(error.source().is_some());
    }

    #[test]
    fn thread_unknown_to_python_is_an_error() {
        let (interpreter, expected) = two_frames(&LAYOUTS[3]);
        let walker = interpreter.walker_without_thread_state();
        let error = check_frames(&walker, &expected).expect_err("no thread state");
        assert!(matches!(error, SelfCheckError::NoThreadState), "{error}");
    }
}
