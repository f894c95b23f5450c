//! How a snapshot's values are written down, whichever way.

use std::io;

use vramscope_trace::{Definitions, Frame, StackId, StringId};

/// Frames of a stack that are written, the innermost: as deep as Python calls. Every entry repeats them, and stacks from outside may share their
/// outer frames without end, so that a small recording would fill any disk.
const MAX_FRAMES: usize = 1024;

/// The frames of a stack that are written.
pub(super) fn frames(definitions: &Definitions, id: StackId) -> impl Iterator<Item = Frame> + '_ {
    definitions.stack(id).take(MAX_FRAMES)
}

/// Writes a snapshot's values one behind the other, as JSON or as a pickle. The caller sees to it that they nest.
pub(super) trait Notation {
    /// Begins a dictionary, whose keys and values follow in turn.
    fn begin_dict(&mut self) -> io::Result<()>;
    /// A key of the open dictionary.
    fn key(&mut self, name: &'static str) -> io::Result<()>;
    /// A key that is none of the format's own words.
    fn own_key(&mut self, name: &str) -> io::Result<()>;
    /// Ends the open dictionary.
    fn end_dict(&mut self) -> io::Result<()>;
    /// Begins a list, whose items follow.
    fn begin_list(&mut self) -> io::Result<()>;
    /// Ends the open list.
    fn end_list(&mut self) -> io::Result<()>;
    /// A whole number.
    fn number(&mut self, value: i128) -> io::Result<()>;
    /// A number that need not be whole; it is finite.
    fn float(&mut self, value: f64) -> io::Result<()>;
    /// What stands where there is no value.
    fn nothing(&mut self) -> io::Result<()>;
    /// True or false.
    fn boolean(&mut self, value: bool) -> io::Result<()>;
    /// Two numbers that belong together, as the name of a private pool.
    fn pair(&mut self, first: u64, second: u64) -> io::Result<()>;
    /// One of the words that the format uses.
    fn word(&mut self, word: &'static str) -> io::Result<()>;
    /// A text that stands only here.
    fn text(&mut self, text: &str) -> io::Result<()>;
    /// A string of the recording.
    fn string(&mut self, definitions: &Definitions, id: StringId) -> io::Result<()>;
    /// A call stack of the recording, as a list of frames, innermost first.
    fn frames(&mut self, definitions: &Definitions, id: StackId) -> io::Result<()>;
    /// Ends the snapshot.
    fn finish(&mut self) -> io::Result<()>;

    /// A source file; PyTorch has two question marks where it does not know it.
    fn file(&mut self, definitions: &Definitions, id: StringId) -> io::Result<()> {
        if definitions.string(id).is_empty() { self.word("??") } else { self.string(definitions, id) }
    }

    /// A field of the open dictionary that is a whole number.
    fn number_field(&mut self, name: &'static str, value: impl Into<i128>) -> io::Result<()> {
        self.key(name)?;
        self.number(value.into())
    }

    /// A field of the open dictionary that is one of the format's words.
    fn word_field(&mut self, name: &'static str, word: &'static str) -> io::Result<()> {
        self.key(name)?;
        self.word(word)
    }
}
