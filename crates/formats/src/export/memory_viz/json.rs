//! A snapshot as JSON: what `json.dumps` makes of one, with lists for tuples.

use std::io::{self, Write};

use vramscope_trace::{Definitions, StackId, StringId};

use super::notation::{Notation, frames};

/// Writes JSON without spaces.
pub(super) struct Json<W> {
    out: W,
    /// Whether the next item or key is the first of its container.
    is_first: bool,
    /// The next value belongs to the key before it.
    after_key: bool,
}

impl<W: Write> Json<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, is_first: true, after_key: false }
    }

    /// What stands between this value and what was before it.
    fn separate(&mut self) -> io::Result<()> {
        if !self.is_first && !self.after_key {
            self.out.write_all(b",")?;
        }
        self.is_first = false;
        self.after_key = false;
        Ok(())
    }

    fn begin(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.separate()?;
        self.is_first = true;
        self.out.write_all(bracket)
    }

    fn end(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.is_first = false;
        self.out.write_all(bracket)
    }
}

impl<W: Write> Notation for Json<W> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.begin(b"{")
    }

    fn key(&mut self, name: &'static str) -> io::Result<()> {
        self.separate()?;
        self.after_key = true;
        write!(self.out, "\"{name}\":")
    }

    fn own_key(&mut self, name: &str) -> io::Result<()> {
        self.text(name)?;
        self.after_key = true;
        self.out.write_all(b":")
    }

    fn end_dict(&mut self) -> io::Result<()> {
        self.end(b"}")
    }

    fn begin_list(&mut self) -> io::Result<()> {
        self.begin(b"[")
    }

    fn end_list(&mut self) -> io::Result<()> {
        self.end(b"]")
    }

    fn number(&mut self, value: i128) -> io::Result<()> {
        self.separate()?;
        write!(self.out, "{value}")
    }

    fn float(&mut self, value: f64) -> io::Result<()> {
        self.separate()?;
        // With a point even where it is whole, as Python does.
        write!(self.out, "{value:?}")
    }

    fn nothing(&mut self) -> io::Result<()> {
        self.separate()?;
        self.out.write_all(b"null")
    }

    fn boolean(&mut self, value: bool) -> io::Result<()> {
        self.separate()?;
        write!(self.out, "{value}")
    }

    fn pair(&mut self, first: u64, second: u64) -> io::Result<()> {
        self.separate()?;
        write!(self.out, "[{first},{second}]")
    }

    fn word(&mut self, word: &'static str) -> io::Result<()> {
        self.separate()?;
        write!(self.out, "\"{word}\"")
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.separate()?;
        Ok(serde_json::to_writer(&mut self.out, text)?)
    }

    fn string(&mut self, definitions: &Definitions, id: StringId) -> io::Result<()> {
        self.text(definitions.string(id))
    }

    fn frames(&mut self, definitions: &Definitions, id: StackId) -> io::Result<()> {
        self.begin_list()?;
        for frame in frames(definitions, id) {
            self.begin_dict()?;
            self.key("name")?;
            self.string(definitions, frame.function)?;
            self.key("filename")?;
            self.file(definitions, frame.file)?;
            self.number_field("line", frame.line)?;
            self.end_dict()?;
        }
        self.end_list()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(b"\n")?;
        self.out.flush()
    }
}
