//! Writes a snapshot as JSON, as `json.dumps` would, with lists for tuples.

use std::io::{self, Write};

use vramscope_trace::{Definitions, StackId, StringId};

use super::snapshot_writer::{SnapshotWriter, limited_frames};

/// Writes a PyTorch snapshot as JSON without spaces.
pub(super) struct JsonWriter<W> {
    out: W,
    /// True if the next item or key is the first of its container.
    is_first: bool,
    /// True if the next value belongs to the key before it.
    after_key: bool,
}

impl<W: Write> JsonWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, is_first: true, after_key: false }
    }

    /// Writes the comma before a value or key, unless it is the first of its container or the value
    /// of a key.
    fn separate(&mut self) -> io::Result<()> {
        if !self.is_first && !self.after_key {
            self.out.write_all(b",")?;
        }
        self.is_first = false;
        self.after_key = false;
        Ok(())
    }

    /// Writes the opening `bracket` of a list or dictionary, after a comma where one is needed.
    fn begin(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.separate()?;
        self.is_first = true;
        self.out.write_all(bracket)
    }

    /// Writes the closing `bracket` of a list or dictionary.
    fn end(&mut self, bracket: &[u8]) -> io::Result<()> {
        self.is_first = false;
        self.out.write_all(bracket)
    }
}

impl<W: Write> SnapshotWriter for JsonWriter<W> {
    fn begin_dict(&mut self) -> io::Result<()> {
        self.begin(b"{")
    }

    fn key(&mut self, name: &'static str) -> io::Result<()> {
        self.separate()?;
        self.after_key = true;
        write!(self.out, "\"{name}\":")
    }

    fn dynamic_key(&mut self, name: &str) -> io::Result<()> {
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
        // Python writes a decimal point even for whole numbers.
        write!(self.out, "{value:?}")
    }

    fn null(&mut self) -> io::Result<()> {
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

    fn constant(&mut self, text: &'static str) -> io::Result<()> {
        self.separate()?;
        write!(self.out, "\"{text}\"")
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
        for frame in limited_frames(definitions, id) {
            self.frame(definitions, frame)?;
        }
        self.end_list()
    }

    fn finish(&mut self) -> io::Result<()> {
        self.out.write_all(b"\n")?;
        self.out.flush()
    }
}
