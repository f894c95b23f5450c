//! Byte offsets in CPython's internal structures, for each supported version.
//!
//! CPython keeps these structures unchanged within a minor version. [`Layout::for_interpreter`]
//! picks the entry; `self_check.rs` confirms at run time that it fits the running interpreter.
//!
//! Each entry names the headers that `check_layout.c` was compiled with, on x86-64 and
//! aarch64, and the interpreters that the walker was run with, on x86-64.

use super::line_table::LineTableFormat;

/// Offset of `ob_type` in every object.
pub(super) const OBJECT_TYPE: usize = 8;
/// Offset of `ob_size` in an object of variable size, such as `bytes`.
pub(super) const OBJECT_SIZE: usize = 16;
/// Offset of `tp_basicsize` in a `PyTypeObject`.
pub(super) const TYPE_INSTANCE_SIZE: usize = 32;
/// Offset of `ob_shash` in a `PyBytesObject` and of `hash` in a `PyASCIIObject`: the hash, or -1 if
/// nothing has asked for it.
pub(super) const HASH: usize = 24;
/// Offset of `ob_sval`, the first byte, in a `PyBytesObject`.
pub(super) const BYTES_DATA: usize = 32;
/// Offset of `length`, the number of characters, in a `PyASCIIObject`.
pub(super) const TEXT_LENGTH: usize = 16;
/// Offset of `state` in a `PyASCIIObject`: the bits 2 to 4 are the size of a character, bit 5 is
/// set if the characters follow the header, bit 6 if all of them are ASCII.
pub(super) const TEXT_STATE: usize = 32;
/// Lowest `owner` of a frame that the interpreter itself pushed (`FRAME_OWNED_BY_INTERPRETER` or
/// `FRAME_OWNED_BY_CSTACK`). Frames of Python functions have a lower one.
pub(super) const FIRST_INTERPRETER_OWNER: u8 = 3;
/// The bit `CO_FAST_CELL` in `co_localspluskinds`: the variable is in a cell.
pub(super) const LOCAL_KIND_CELL: u8 = 0x40;

/// Byte offsets that frame walking and code reading need, for one minor version of CPython.
#[derive(Debug)]
pub(crate) struct Layout {
    /// Minor version: 12 for CPython 3.12.
    pub(super) minor: u32,
    /// In `PyThreadState`: the innermost frame, or the `cframe` that points to it.
    pub(super) thread_frame: usize,
    /// In `_PyCFrame`: the innermost frame. `None` if the thread state has it.
    pub(super) cframe_frame: Option<usize>,
    /// In a frame: the code object. Other objects mark frames of the interpreter itself.
    pub(super) frame_code: usize,
    /// In a frame: the caller's frame, or null.
    pub(super) frame_previous: usize,
    /// In a frame: the last instruction, as a pointer, or as an `int` index without
    /// [`Self::code_bytecode`].
    pub(super) frame_instruction: usize,
    /// In a frame: the byte `owner`. `None` if all frames belong to Python functions.
    pub(super) frame_owner: Option<usize>,
    /// In a frame: the first local variable.
    pub(super) frame_first_local: usize,
    /// Tag bits in a frame's object pointers (`_PyStackRef`), or 0. A pointer with all bits set is
    /// an integer, and no object.
    pub(super) reference_tags: usize,
    /// `PyCode_Type.tp_basicsize`: the size of a code object, without its bytecode from 3.11.
    pub(super) code_size: usize,
    /// In a code object: `co_filename`, a `str`.
    pub(super) code_file_name: usize,
    /// In a code object: `co_name`, a `str`.
    pub(super) code_name: usize,
    /// In a code object: `co_qualname`, a `str`. `None` in 3.10, which has only the name.
    pub(super) code_qualified_name: Option<usize>,
    /// In a code object: `co_firstlineno`, an `int`.
    pub(super) code_first_line: usize,
    /// In a code object: `co_linetable`, a `bytes`.
    pub(super) code_line_table: usize,
    /// In a code object: `co_argcount`, an `int`.
    pub(super) code_argument_count: usize,
    /// In a code object: `co_localspluskinds`, a `bytes`. `None` in 3.10, where a variable in a
    /// cell leaves its own slot null.
    pub(super) code_local_kinds: Option<usize>,
    /// In a code object: `co_version`, an `int` that no other code object has; 0 once the numbers
    /// are used up. `None` before 3.12.
    pub(super) code_version: Option<usize>,
    /// In a code object: the first instruction. `None` in 3.10, whose frames store an index.
    pub(super) code_bytecode: Option<usize>,
    /// Format of `co_linetable`.
    pub(super) line_table_format: LineTableFormat,
    /// In a `str` that is all ASCII: the first character.
    pub(super) text_ascii_data: usize,
    /// In any other `str`: the first character.
    pub(super) text_compact_data: usize,
    /// In a `str` whose characters are stored elsewhere: the pointer to them.
    pub(super) text_data_pointer: usize,
}

/// CPython 3.10.
///
/// Source: `cpython/pystate.h`, `cpython/frameobject.h`, `cpython/code.h` and
/// `cpython/unicodeobject.h`. Checked with the headers of 3.10.13; run with 3.10.13.
const CPYTHON_3_10: Layout = Layout {
    minor: 10,
    thread_frame: 24,
    cframe_frame: None,
    frame_code: 32,
    frame_previous: 24,
    frame_instruction: 96,
    frame_owner: None,
    frame_first_local: 352,
    reference_tags: 0,
    code_size: 176,
    code_file_name: 104,
    code_name: 112,
    code_qualified_name: None,
    code_first_line: 40,
    code_line_table: 120,
    code_argument_count: 16,
    code_local_kinds: None,
    code_version: None,
    code_bytecode: None,
    line_table_format: LineTableFormat::LineDeltas,
    text_ascii_data: 48,
    text_compact_data: 72,
    text_data_pointer: 72,
};

/// CPython 3.11.
///
/// Source: `cpython/pystate.h`, `internal/pycore_frame.h`, `cpython/code.h` and
/// `cpython/unicodeobject.h`. Checked with the headers of 3.11.7; run with 3.11.7.
const CPYTHON_3_11: Layout = Layout {
    minor: 11,
    thread_frame: 56,
    cframe_frame: Some(8),
    frame_code: 32,
    frame_previous: 48,
    frame_instruction: 56,
    frame_owner: Some(69),
    frame_first_local: 72,
    reference_tags: 0,
    code_size: 184,
    code_file_name: 112,
    code_name: 120,
    code_qualified_name: Some(128),
    code_first_line: 72,
    code_line_table: 136,
    code_argument_count: 56,
    code_local_kinds: Some(104),
    code_version: None,
    code_bytecode: Some(184),
    line_table_format: LineTableFormat::Locations,
    text_ascii_data: 48,
    text_compact_data: 72,
    text_data_pointer: 72,
};

/// CPython 3.12: what differs from 3.11.
///
/// Source: `cpython/pystate.h`, `internal/pycore_frame.h`, `cpython/code.h` and
/// `cpython/unicodeobject.h`. Checked with the headers of 3.12.1; run with 3.12.1.
const CPYTHON_3_12: Layout = Layout {
    minor: 12,
    cframe_frame: Some(0),
    frame_code: 0,
    frame_previous: 8,
    frame_owner: Some(70),
    code_size: 192,
    code_first_line: 68,
    code_argument_count: 52,
    code_version: Some(92),
    code_bytecode: Some(192),
    text_ascii_data: 40,
    text_compact_data: 56,
    text_data_pointer: 56,
    ..CPYTHON_3_11
};

/// CPython 3.13: what differs from 3.12.
///
/// Source: `cpython/pystate.h`, `internal/pycore_frame.h`, `cpython/code.h` and
/// `cpython/unicodeobject.h`. Checked with the headers of 3.13.0 and 3.13.15; run with both.
const CPYTHON_3_13: Layout = Layout {
    minor: 13,
    thread_frame: 72,
    cframe_frame: None,
    code_size: 200,
    code_bytecode: Some(200),
    ..CPYTHON_3_12
};

/// CPython 3.14: what differs from 3.13.
///
/// Source: `cpython/pystate.h`, `internal/pycore_interpframe_structs.h`,
/// `internal/pycore_stackref.h`, `cpython/code.h` and `cpython/unicodeobject.h`. Checked with
/// the headers of 3.14.8; run with 3.14.8.
const CPYTHON_3_14: Layout = Layout {
    minor: 14,
    frame_owner: Some(74),
    frame_first_local: 80,
    reference_tags: 3,
    code_size: 208,
    code_bytecode: Some(208),
    ..CPYTHON_3_13
};

/// All supported versions, in ascending order.
pub(crate) static LAYOUTS: [Layout; 5] = [CPYTHON_3_10, CPYTHON_3_11, CPYTHON_3_12, CPYTHON_3_13, CPYTHON_3_14];

/// The facts about the running interpreter that decide its layout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InterpreterBuild {
    /// `Py_Version`, which is `sys.hexversion`: 0x030c01f0 for 3.12.1.
    pub(crate) hex_version: u32,
    /// True for a build without the GIL: `sysconfig.get_config_var("Py_GIL_DISABLED")`.
    pub(crate) free_threaded: bool,
    /// True for a build with `Py_TRACE_REFS`: `hasattr(sys, "getobjects")`.
    pub(crate) trace_refs: bool,
}

/// The reason why an interpreter has no [`Layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LayoutError {
    /// The target is not 64-bit little-endian Linux.
    #[error("cannot read Python call stacks: this platform is not supported: use 64-bit Linux on x86-64 or aarch64")]
    Platform,
    /// The version is not one of 3.10 to 3.14.
    #[error("cannot read Python call stacks: Python {major}.{minor} is not supported: use CPython 3.10 to 3.14")]
    Version { major: u32, minor: u32 },
    /// The interpreter is built without the GIL.
    #[error("cannot read Python call stacks: this Python has no GIL: use a build with the GIL")]
    FreeThreaded,
    /// The interpreter is built with `Py_TRACE_REFS`.
    #[error("cannot read Python call stacks: this Python is built with Py_TRACE_REFS: use a release build")]
    TraceRefs,
}

impl Layout {
    /// Returns the layout of an interpreter.
    ///
    /// # Errors
    ///
    /// [`LayoutError`] says why the interpreter is not supported.
    pub(crate) fn for_interpreter(build: InterpreterBuild) -> Result<&'static Self, LayoutError> {
        if !cfg!(all(target_os = "linux", target_pointer_width = "64", target_endian = "little")) {
            return Err(LayoutError::Platform);
        }
        if build.free_threaded {
            return Err(LayoutError::FreeThreaded);
        }
        if build.trace_refs {
            return Err(LayoutError::TraceRefs);
        }
        let (major, minor) = (build.hex_version >> 24, build.hex_version >> 16 & 0xff);
        LAYOUTS.iter().find(|layout| major == 3 && layout.minor == minor).ok_or(LayoutError::Version { major, minor })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns all offsets by field name: those of a layout, and those that all versions share.
    fn offsets_by_name(layout: &Layout) -> BTreeMap<&'static str, usize> {
        // No `..`: a new field must be added here and to `check_layout.c`.
        let Layout {
            minor: _,
            thread_frame,
            cframe_frame,
            frame_code,
            frame_previous,
            frame_instruction,
            frame_owner,
            frame_first_local,
            reference_tags,
            code_size,
            code_file_name,
            code_name,
            code_qualified_name,
            code_first_line,
            code_line_table,
            code_argument_count,
            code_local_kinds,
            code_version,
            code_bytecode,
            line_table_format: _,
            text_ascii_data,
            text_compact_data,
            text_data_pointer,
        } = *layout;
        let required = [
            ("OBJECT_TYPE", OBJECT_TYPE),
            ("OBJECT_SIZE", OBJECT_SIZE),
            ("TYPE_INSTANCE_SIZE", TYPE_INSTANCE_SIZE),
            ("HASH", HASH),
            ("BYTES_DATA", BYTES_DATA),
            ("TEXT_LENGTH", TEXT_LENGTH),
            ("TEXT_STATE", TEXT_STATE),
            ("thread_frame", thread_frame),
            ("frame_code", frame_code),
            ("frame_previous", frame_previous),
            ("frame_instruction", frame_instruction),
            ("frame_first_local", frame_first_local),
            ("code_size", code_size),
            ("code_file_name", code_file_name),
            ("code_name", code_name),
            ("code_first_line", code_first_line),
            ("code_line_table", code_line_table),
            ("code_argument_count", code_argument_count),
            ("text_ascii_data", text_ascii_data),
            ("text_compact_data", text_compact_data),
            ("text_data_pointer", text_data_pointer),
        ];
        let optional = [
            ("cframe_frame", cframe_frame),
            ("frame_owner", frame_owner),
            ("reference_tags", (reference_tags != 0).then_some(reference_tags)),
            ("code_qualified_name", code_qualified_name),
            ("code_local_kinds", code_local_kinds),
            ("code_version", code_version),
            ("code_bytecode", code_bytecode),
            ("FIRST_INTERPRETER_OWNER", frame_owner.map(|_| usize::from(FIRST_INTERPRETER_OWNER))),
            ("LOCAL_KIND_CELL", code_local_kinds.map(|_| usize::from(LOCAL_KIND_CELL))),
        ];
        let present = optional.into_iter().filter_map(|(name, offset)| Some((name, offset?)));
        required.into_iter().chain(present).collect()
    }

    /// Returns what `check_layout.c` expects of a minor version, by field name.
    fn offsets_in_c(minor: u32) -> BTreeMap<&'static str, usize> {
        let mut applies = true;
        let mut offsets = BTreeMap::new();
        let (_, body) = include_str!("check_layout.c").split_once("int main(void) {").expect("no main function");
        for line in body.lines().map(str::trim) {
            if let Some(version) = line.strip_prefix("#if VERSION == ") {
                applies = version.parse() == Ok(minor);
            } else if let Some(version) = line.strip_prefix("#if VERSION >= ") {
                applies = minor >= version.parse().expect("not a version");
            } else if line == "#endif" {
                applies = true;
            } else if let Some(arguments) = line.strip_prefix("OFFSET(").or(line.strip_prefix("VALUE(")) {
                let (field, rest) = arguments.split_once(',').expect("no second argument");
                let (_, expected) = rest.rsplit_once(", ").expect("no expected value");
                let expected = expected.strip_suffix(')').expect("no closing parenthesis");
                let value = match expected.strip_prefix("0x") {
                    Some(digits) => usize::from_str_radix(digits, 16),
                    None => expected.parse(),
                };
                if applies {
                    offsets.insert(field, value.expect("not a number"));
                }
            }
        }
        offsets
    }

    #[test]
    fn offsets_equal_those_checked_against_the_headers() {
        for layout in &LAYOUTS {
            assert_eq!(offsets_by_name(layout), offsets_in_c(layout.minor), "CPython 3.{}", layout.minor);
        }
    }

    #[test]
    fn each_supported_version_has_its_layout() {
        for minor in 10..=14 {
            let hex_version = 3 << 24 | minor << 16 | 0x1f0;
            let build = InterpreterBuild { hex_version, free_threaded: false, trace_refs: false };
            assert_eq!(Layout::for_interpreter(build).expect("supported version").minor, minor);
        }
    }

    #[test]
    fn other_interpreters_are_refused() {
        let supported = InterpreterBuild { hex_version: 0x030d_00f0, free_threaded: false, trace_refs: false };
        for (build, expected) in [
            (
                InterpreterBuild { hex_version: 0x0309_12f0, ..supported },
                "Python 3.9 is not supported: use CPython 3.10 to 3.14",
            ),
            (
                InterpreterBuild { hex_version: 0x030f_00f0, ..supported },
                "Python 3.15 is not supported: use CPython 3.10 to 3.14",
            ),
            (
                InterpreterBuild { hex_version: 0x040c_00f0, ..supported },
                "Python 4.12 is not supported: use CPython 3.10 to 3.14",
            ),
            (InterpreterBuild { free_threaded: true, ..supported }, "this Python has no GIL: use a build with the GIL"),
            (
                InterpreterBuild { trace_refs: true, ..supported },
                "this Python is built with Py_TRACE_REFS: use a release build",
            ),
        ] {
            let error = Layout::for_interpreter(build).expect_err("unsupported");
            assert_eq!(error.to_string(), format!("cannot read Python call stacks: {expected}"));
        }
    }
}
