//! Segments and their blocks.

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess};

use super::frames::next_stack;
use super::walk::{Dict, List, One, Part, Rows};
use crate::torch::builder::{Builder, Owner};
use crate::torch::key::Key;
use crate::torch::scalar::{Refusal, Scalar};
use crate::torch::snapshot::{BlockRow, SegmentRow};

/// The list of segments of the devices, or of the host.
pub(super) struct Segments<'a> {
    pub(super) builder: &'a mut Builder,
    pub(super) owner: Owner,
    /// Nothing but its items tells that this is a list of segments.
    pub(super) must_be: bool,
}

impl Rows for Segments<'_> {
    fn row<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        let first_block = self.builder.snapshot.blocks.len();
        let mut segment = Segment { builder: self.builder, row: SegmentRow::default(), is_placed: [false; 2] };
        let read = list.next_element_seed(Dict(&mut segment))?;
        let Segment { row, is_placed, .. } = segment;
        if read.is_some() {
            if self.must_be && is_placed != [true; 2] {
                return Err(A::Error::custom("this is a list, and not one of segments"));
            }
            self.builder.push_segment(row, first_block, self.owner).map_err(A::Error::custom)?;
        }
        Ok(read)
    }
}

struct Segment<'a> {
    builder: &'a mut Builder,
    row: SegmentRow,
    /// Whether it has an address, and a size.
    is_placed: [bool; 2],
}

impl Part for Segment<'_> {
    fn key<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        match key {
            Key::Frames => {
                self.row.origin.stack = next_stack(self.builder, map)?;
                Ok(())
            }
            Key::Blocks => map.next_value_seed(List(&mut Blocks(self.builder))),
            _ => map.next_value_seed(One(|value: Scalar<'_>| self.scalar(key, value))),
        }
    }

    fn scalar(&mut self, key: Key, value: Scalar<'_>) -> Result<(), Refusal> {
        self.is_placed[0] |= key == Key::Address;
        self.is_placed[1] |= key == Key::TotalSize;
        self.builder.segment_field(&mut self.row, key, value)
    }
}

struct Blocks<'a>(&'a mut Builder);

impl Rows for Blocks<'_> {
    fn row<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        let mut block = Block { builder: self.0, row: BlockRow::default() };
        let read = list.next_element_seed(Dict(&mut block))?;
        let row = block.row;
        if read.is_some() {
            self.0.push_block(row).map_err(A::Error::custom)?;
        }
        Ok(read)
    }
}

struct Block<'a> {
    builder: &'a mut Builder,
    row: BlockRow,
}

impl Part for Block<'_> {
    fn key<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        match key {
            Key::Frames => {
                self.row.origin.stack = next_stack(self.builder, map)?;
                Ok(())
            }
            Key::History => map.next_value_seed(List(&mut BlockHistory { block: self, is_newest: true })),
            _ => map.next_value_seed(One(|value: Scalar<'_>| self.scalar(key, value))),
        }
    }

    fn scalar(&mut self, key: Key, value: Scalar<'_>) -> Result<(), Refusal> {
        self.builder.block_field(&mut self.row, key, value)
    }
}

/// Old versions say in a list what was put into a block, the newest first, and only there where that came from.
struct BlockHistory<'b, 'a> {
    block: &'b mut Block<'a>,
    is_newest: bool,
}

impl Rows for BlockHistory<'_, '_> {
    fn row<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        if std::mem::take(&mut self.is_newest) {
            return list.next_element_seed(Dict(&mut PastContent(self.block)));
        }
        Ok(list.next_element::<IgnoredAny>()?.map(|_| ()))
    }
}

struct PastContent<'b, 'a>(&'b mut Block<'a>);

impl Part for PastContent<'_, '_> {
    fn key<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        if key == Key::Frames {
            self.0.row.origin.stack = next_stack(self.0.builder, map)?;
            return Ok(());
        }
        map.next_value_seed(One(|value: Scalar<'_>| self.scalar(key, value)))
    }

    fn scalar(&mut self, key: Key, value: Scalar<'_>) -> Result<(), Refusal> {
        if key == Key::RealSize { self.0.scalar(key, value) } else { Ok(()) }
    }
}
