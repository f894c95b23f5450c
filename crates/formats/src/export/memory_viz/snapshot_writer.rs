//! The interface that both snapshot formats implement.

use std::io;

use vramscope_trace::{Definitions, Frame, StackId, StringId};

/// Maximum number of frames written of one stack, counted from the innermost; the outer ones are
/// left out. It is Python's default recursion limit. Without it, a small forged recording could
/// fill any disk.
const MAX_FRAMES: usize = 1024;

/// Returns the first [`MAX_FRAMES`] frames of a stack, innermost first.
pub(super) fn limited_frames(definitions: &Definitions, id: StackId) -> impl Iterator<Item = Frame> + '_ {
    definitions.stack(id).take(MAX_FRAMES)
}

/// Writes the values of a PyTorch snapshot in order, as JSON or as a pickle. The caller ensures
/// that lists and dictionaries nest correctly.
pub(super) trait SnapshotWriter {
    /// Begins a dictionary. The caller then writes keys and values alternately, and ends it.
    fn begin_dict(&mut self) -> io::Result<()>;
    /// Writes a key of the open dictionary; it is a fixed string of the snapshot format.
    fn key(&mut self, name: &'static str) -> io::Result<()>;
    /// Writes a key of the open dictionary that is not part of the snapshot format, such as the
    /// name of an unknown setting.
    fn dynamic_key(&mut self, name: &str) -> io::Result<()>;
    /// Ends the open dictionary.
    fn end_dict(&mut self) -> io::Result<()>;
    /// Begins a list. The caller then writes its items, and ends it.
    fn begin_list(&mut self) -> io::Result<()>;
    /// Ends the open list.
    fn end_list(&mut self) -> io::Result<()>;
    /// Writes an integer.
    fn number(&mut self, value: i128) -> io::Result<()>;
    /// Writes a floating-point number, which must be finite.
    fn float(&mut self, value: f64) -> io::Result<()>;
    /// Writes the null value.
    fn null(&mut self) -> io::Result<()>;
    /// Writes a boolean.
    fn boolean(&mut self, value: bool) -> io::Result<()>;
    /// Writes a tuple of two integers, such as the id of a private pool.
    fn pair(&mut self, first: u64, second: u64) -> io::Result<()>;
    /// Writes a fixed string of the snapshot format. A pickle contains it once and then refers to
    /// it.
    fn constant(&mut self, text: &'static str) -> io::Result<()>;
    /// Writes a string that is expected only once. A pickle contains it each time it is written.
    fn text(&mut self, text: &str) -> io::Result<()>;
    /// Writes the string with number `id` of the recording. A pickle contains it once and then
    /// refers to it.
    fn string(&mut self, definitions: &Definitions, id: StringId) -> io::Result<()>;
    /// Writes a call stack of the recording as a list of frames, innermost first.
    fn frames(&mut self, definitions: &Definitions, id: StackId) -> io::Result<()>;
    /// Ends the snapshot and flushes the output.
    fn finish(&mut self) -> io::Result<()>;

    /// Writes the name of a source file, the string with number `id`; like PyTorch, `??` if it is
    /// empty.
    fn file(&mut self, definitions: &Definitions, id: StringId) -> io::Result<()> {
        if definitions.string(id).is_empty() { self.constant("??") } else { self.string(definitions, id) }
    }

    /// Writes one call frame as a dictionary of function name, file name and line number.
    fn frame(&mut self, definitions: &Definitions, frame: Frame) -> io::Result<()> {
        self.begin_dict()?;
        self.key("name")?;
        self.string(definitions, frame.function)?;
        self.key("filename")?;
        self.file(definitions, frame.file)?;
        self.number_field("line", frame.line)?;
        self.end_dict()
    }

    /// Writes a key of the open dictionary and its integer value.
    fn number_field(&mut self, name: &'static str, value: impl Into<i128>) -> io::Result<()> {
        self.key(name)?;
        self.number(value.into())
    }

    /// Writes a key of the open dictionary and its value, a fixed string of the snapshot format.
    fn constant_field(&mut self, name: &'static str, text: &'static str) -> io::Result<()> {
        self.key(name)?;
        self.constant(text)
    }
}
