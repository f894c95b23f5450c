//! The interface that both snapshot formats implement.

use std::io;

use vramscope_trace::{Definitions, Frame, StackId, StringId};

/// Maximum number of frames written of a stack, from the innermost: the depth of Python's recursion
/// limit. Every entry repeats its stack, and untrusted stacks may share outer frames without bound,
/// so that a small recording would fill any disk.
const MAX_FRAMES: usize = 1024;

/// Returns the frames of a stack that are written.
pub(super) fn limited_frames(definitions: &Definitions, id: StackId) -> impl Iterator<Item = Frame> + '_ {
    definitions.stack(id).take(MAX_FRAMES)
}

/// Writes the values of a snapshot in order, as JSON or as a pickle. The caller ensures that they
/// nest correctly.
pub(super) trait SnapshotWriter {
    /// Begins a dictionary. Its keys and values follow alternately.
    fn begin_dict(&mut self) -> io::Result<()>;
    /// Writes a key of the open dictionary.
    fn key(&mut self, name: &'static str) -> io::Result<()>;
    /// Writes a key that is not part of the snapshot format.
    fn dynamic_key(&mut self, name: &str) -> io::Result<()>;
    /// Ends the open dictionary.
    fn end_dict(&mut self) -> io::Result<()>;
    /// Begins a list. Its items follow.
    fn begin_list(&mut self) -> io::Result<()>;
    /// Ends the open list.
    fn end_list(&mut self) -> io::Result<()>;
    /// Writes an integer.
    fn number(&mut self, value: i128) -> io::Result<()>;
    /// Writes a finite float.
    fn float(&mut self, value: f64) -> io::Result<()>;
    /// Writes the null value.
    fn null(&mut self) -> io::Result<()>;
    /// Writes a boolean.
    fn boolean(&mut self, value: bool) -> io::Result<()>;
    /// Writes a tuple of two integers, such as the id of a private pool.
    fn pair(&mut self, first: u64, second: u64) -> io::Result<()>;
    /// Writes a string that is part of the snapshot format.
    fn constant(&mut self, text: &'static str) -> io::Result<()>;
    /// Writes a string that occurs once.
    fn text(&mut self, text: &str) -> io::Result<()>;
    /// Writes a string of the recording.
    fn string(&mut self, definitions: &Definitions, id: StringId) -> io::Result<()>;
    /// Writes a call stack of the recording as a list of frames, innermost first.
    fn frames(&mut self, definitions: &Definitions, id: StackId) -> io::Result<()>;
    /// Ends the snapshot.
    fn finish(&mut self) -> io::Result<()>;

    /// Writes the name of a source file; like PyTorch, `??` if it is unknown.
    fn file(&mut self, definitions: &Definitions, id: StringId) -> io::Result<()> {
        if definitions.string(id).is_empty() { self.constant("??") } else { self.string(definitions, id) }
    }

    /// Writes an integer field of the open dictionary.
    fn number_field(&mut self, name: &'static str, value: impl Into<i128>) -> io::Result<()> {
        self.key(name)?;
        self.number(value.into())
    }

    /// Writes a field of the open dictionary whose value is part of the snapshot format.
    fn constant_field(&mut self, name: &'static str, text: &'static str) -> io::Result<()> {
        self.key(name)?;
        self.constant(text)
    }
}
