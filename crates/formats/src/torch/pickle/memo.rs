//! The memo: values that a pickle refers to by slot number.

use super::value::{ListId, PackedValue, StringRef, Value};
use crate::limits::{LimitExceeded, MemoryBudget};
use crate::torch::paged_list::PagedList;
use crate::torch::scalar::FieldError;

/// The memo of a pickle: values that its instructions store and read by slot number.
#[derive(Debug, Default)]
pub(super) struct Memo {
    slots: PagedList<PackedValue>,
    /// Values that do not fit in a slot.
    overflow: PagedList<Value>,
}

impl Memo {
    /// Returns the number of slots, empty ones included; the next new slot has this number.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the value of a slot; `None` if no value was stored in it.
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<Value> {
        self.unpack(*self.slots.get(slot as usize)?)
    }

    /// Returns the text in a slot; `None` if the slot holds anything else, or a text whose index
    /// does not fit in a slot.
    #[inline]
    pub(super) fn text(&self, slot: u32) -> Option<StringRef> {
        self.slots.get(slot as usize)?.text()
    }

    /// Returns the list in a slot; `None` if the slot holds anything else, or a list whose index
    /// does not fit in a slot.
    #[inline]
    pub(super) fn list(&self, slot: u32) -> Option<ListId> {
        self.slots.get(slot as usize)?.list()
    }

    /// Returns the value that the content of a slot stands for; `None` for an empty slot.
    #[inline]
    fn unpack(&self, packed: PackedValue) -> Option<Value> {
        match packed.unpack() {
            Ok(value) => Some(value),
            Err(index) => self.overflow.get(index? as usize).copied(),
        }
    }

    /// Packs a value for a slot. A value that does not fit in a slot is stored in `overflow`,
    /// unless it equals the last value there: successive entries often have one private pool.
    #[inline]
    fn pack(&mut self, value: Value, budget: &mut MemoryBudget) -> Result<PackedValue, LimitExceeded> {
        match PackedValue::pack(value) {
            Some(packed) => Ok(packed),
            None => self.pack_overflow(value, budget),
        }
    }

    /// Stores a value in the list of values that do not fit in a slot, and returns the reference.
    fn pack_overflow(&mut self, value: Value, budget: &mut MemoryBudget) -> Result<PackedValue, LimitExceeded> {
        let count = self.overflow.len();
        let index = match count.checked_sub(1) {
            Some(last) if self.overflow.get(last) == Some(&value) => last,
            _ => {
                self.overflow.push(value, budget)?;
                count
            }
        };
        u32::try_from(index).ok().and_then(PackedValue::overflow).ok_or(LimitExceeded)
    }

    /// Stores a value in the memo slot after the last one. Fails if memory is short.
    #[inline]
    pub(super) fn push(&mut self, value: Value, budget: &mut MemoryBudget) -> Result<(), LimitExceeded> {
        let packed = self.pack(value, budget)?;
        self.slots.push(packed, budget)
    }

    /// Stores a value in a slot; slots that are skipped stay empty. Fails if memory is short, or if
    /// the slot holds a dictionary that is still empty, because other references to that dictionary
    /// look it up in this slot.
    #[inline]
    pub(super) fn put(&mut self, slot: u32, value: Value, budget: &mut MemoryBudget) -> Result<(), FieldError> {
        // Other references to a new dictionary find it by its slot.
        if let Some(Value::NewDict(_)) = self.get(slot) {
            return Err(FieldError::Invalid("a memo slot is overwritten while its dictionary is new"));
        }
        let packed = self.pack(value, budget)?;
        let slot = slot as usize;
        while self.slots.len() < slot {
            self.slots.push(PackedValue::EMPTY, budget)?;
        }
        match self.slots.get_mut(slot) {
            Some(old) => *old = packed,
            None => self.slots.push(packed, budget)?,
        }
        Ok(())
    }

    /// Returns the current form of a value on the stack: an empty dictionary with a memo slot may
    /// have been filled through another reference. Any other value is unchanged.
    #[inline]
    pub(super) fn current(&self, value: Value) -> Value {
        let Value::NewDict(Some(slot)) = value else { return value };
        self.get(slot).unwrap_or(value)
    }

    /// Replaces the empty dictionary in memo slot `slot` by the value that it became when it was
    /// filled; does nothing for `None`, a dictionary without a slot. Fails if memory is short.
    #[inline]
    pub(super) fn remember(
        &mut self,
        slot: Option<u32>,
        value: Value,
        budget: &mut MemoryBudget,
    ) -> Result<(), LimitExceeded> {
        let Some(slot) = slot else { return Ok(()) };
        let packed = self.pack(value, budget)?;
        if let Some(old) = self.slots.get_mut(slot as usize) {
            *old = packed;
        }
        Ok(())
    }
}
