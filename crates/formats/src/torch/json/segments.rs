//! Reads segments and their blocks.

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess};

use super::frames::next_stack;
use super::visit::{AnySeed, DictReader, DictVisitor, ListReader, ListVisitor, ScalarVisitor};
use crate::torch::builder::{Builder, MemoryKind};
use crate::torch::key::SnapshotKey;
use crate::torch::scalar::{FieldResult, Scalar};
use crate::torch::snapshot::{BlockRow, SegmentRow};

/// Reads a list of segments, of the devices or of pinned host memory, from JSON.
pub(super) struct Segments<'a> {
    pub(super) builder: &'a mut Builder,
    pub(super) kind: MemoryKind,
    /// True if the list must be checked to contain segments: no key named it.
    pub(super) requires_segments: bool,
}

impl ListReader for Segments<'_> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        let first_block = self.builder.snapshot.blocks.len();
        let mut segment = SegmentReader { builder: self.builder, row: SegmentRow::default(), has_range: [false; 2] };
        let read = list.next_element_seed(AnySeed(DictVisitor(&mut segment)))?;
        let SegmentReader { row, has_range, .. } = segment;
        if read.is_some() {
            if self.requires_segments && has_range != [true; 2] {
                return Err(A::Error::custom("a list, but not of segments"));
            }
            self.builder.push_segment(row, first_block, self.kind).map_err(A::Error::custom)?;
        }
        Ok(read)
    }
}

/// Reads one segment from JSON: its keys into a row, and its blocks into the snapshot.
struct SegmentReader<'a> {
    builder: &'a mut Builder,
    row: SegmentRow,
    /// Whether it has an address, and whether it has a size.
    has_range: [bool; 2],
}

impl DictReader for SegmentReader<'_> {
    fn key<'de, A: MapAccess<'de>>(&mut self, key: SnapshotKey, map: &mut A) -> Result<(), A::Error> {
        match key {
            SnapshotKey::Frames => {
                self.row.origin.stack = next_stack(self.builder, map)?;
                Ok(())
            }
            SnapshotKey::Blocks => map.next_value_seed(AnySeed(ListVisitor(&mut Blocks(self.builder)))),
            _ => map.next_value_seed(AnySeed(ScalarVisitor(|value: Scalar<'_>| self.scalar(key, value)))),
        }
    }

    fn scalar(&mut self, key: SnapshotKey, value: Scalar<'_>) -> FieldResult {
        self.has_range[0] |= key == SnapshotKey::Address;
        self.has_range[1] |= key == SnapshotKey::TotalSize;
        self.builder.segment_field(&mut self.row, key, value)
    }
}

/// Reads the list of one segment's blocks from JSON into the snapshot.
struct Blocks<'a>(&'a mut Builder);

impl ListReader for Blocks<'_> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        let mut block = BlockReader { builder: self.0, row: BlockRow::default() };
        let read = list.next_element_seed(AnySeed(DictVisitor(&mut block)))?;
        let row = block.row;
        if read.is_some() {
            self.0.push_block(row).map_err(A::Error::custom)?;
        }
        Ok(read)
    }
}

/// Reads the keys of one block of a segment from JSON into a row.
struct BlockReader<'a> {
    builder: &'a mut Builder,
    row: BlockRow,
}

impl DictReader for BlockReader<'_> {
    fn key<'de, A: MapAccess<'de>>(&mut self, key: SnapshotKey, map: &mut A) -> Result<(), A::Error> {
        match key {
            SnapshotKey::Frames => {
                self.row.origin.stack = next_stack(self.builder, map)?;
                Ok(())
            }
            SnapshotKey::History => {
                map.next_value_seed(AnySeed(ListVisitor(&mut BlockHistory { block: self, is_newest: true })))
            }
            _ => map.next_value_seed(AnySeed(ScalarVisitor(|value: Scalar<'_>| self.scalar(key, value)))),
        }
    }

    fn scalar(&mut self, key: SnapshotKey, value: Scalar<'_>) -> FieldResult {
        self.builder.block_field(&mut self.row, key, value)
    }
}

/// Reads the `history` of a block from JSON: its allocations, the newest first. Only old versions
/// have it, with the block's call stack inside.
struct BlockHistory<'b, 'a> {
    block: &'b mut BlockReader<'a>,
    is_newest: bool,
}

impl ListReader for BlockHistory<'_, '_> {
    fn item<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error> {
        if std::mem::take(&mut self.is_newest) {
            return list.next_element_seed(AnySeed(DictVisitor(&mut NewestAllocation(self.block))));
        }
        Ok(list.next_element::<IgnoredAny>()?.map(|_| ()))
    }
}

/// Reads the first item of a block's `history` from JSON: call stack and requested size.
struct NewestAllocation<'b, 'a>(&'b mut BlockReader<'a>);

impl DictReader for NewestAllocation<'_, '_> {
    fn key<'de, A: MapAccess<'de>>(&mut self, key: SnapshotKey, map: &mut A) -> Result<(), A::Error> {
        if key == SnapshotKey::Frames {
            self.0.row.origin.stack = next_stack(self.0.builder, map)?;
            return Ok(());
        }
        map.next_value_seed(AnySeed(ScalarVisitor(|value: Scalar<'_>| self.scalar(key, value))))
    }

    fn scalar(&mut self, key: SnapshotKey, value: Scalar<'_>) -> FieldResult {
        if key == SnapshotKey::RealSize { self.0.scalar(key, value) } else { Ok(()) }
    }
}
