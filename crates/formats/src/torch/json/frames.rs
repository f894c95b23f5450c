//! Reads call stacks.

use serde::de::{Error, MapAccess, SeqAccess};
use vramscope_trace::{FrameId, StackId, StringId};

use super::visit::{AnySeed, DictReader, DictVisitor, ListReader, ListVisitor};
use crate::torch::builder::{Builder, is_unknown_file};
use crate::torch::key::SnapshotKey;
use crate::torch::scalar::{FieldResult, Scalar};

/// Reads the list of frames that is the next value of `map` and interns it as a call stack.
pub(super) fn next_stack<'de, A: MapAccess<'de>>(builder: &mut Builder, map: &mut A) -> Result<StackId, A::Error> {
    let mut frames = FrameList { builder, list: Vec::new() };
    map.next_value_seed(AnySeed(ListVisitor(&mut frames)))?;
    let list = frames.list;
    builder.stack(&list).map_err(A::Error::custom)
}

/// Reads a JSON list of call frames and interns the frames that have a function, a file and a line.
struct FrameList<'a> {
    builder: &'a mut Builder,
    /// The frames read so far, innermost first.
    list: Vec<FrameId>,
}

impl ListReader for FrameList<'_> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        let mut frame = FrameReader { builder: self.builder, function: None, file: None, line: None };
        let read = list.next_element_seed(AnySeed(DictVisitor(&mut frame)))?;
        // As in a pickle, a dictionary without all three keys is not a frame.
        if let FrameReader { function: Some(function), file: Some(file), line: Some(line), .. } = frame {
            self.list.push(self.builder.frame(function, file, line).map_err(A::Error::custom)?);
        }
        Ok(read)
    }
}

/// Reads one call frame from JSON: function, file and line, each `None` until its key is read.
struct FrameReader<'a> {
    builder: &'a mut Builder,
    function: Option<StringId>,
    file: Option<StringId>,
    line: Option<u32>,
}

impl DictReader for FrameReader<'_> {
    fn scalar(&mut self, key: SnapshotKey, value: Scalar<'_>) -> FieldResult {
        match (key, value) {
            (SnapshotKey::Name, Scalar::Text(name, _)) => self.function = Some(self.builder.string(name)?),
            (SnapshotKey::Filename, Scalar::Text(name, _)) => {
                let name = if is_unknown_file(name) { "" } else { name };
                self.file = Some(self.builder.string(name)?);
            }
            (SnapshotKey::Line, Scalar::Int(line)) => self.line = Some(u32::try_from(line).unwrap_or(0)),
            _ => {}
        }
        Ok(())
    }
}
