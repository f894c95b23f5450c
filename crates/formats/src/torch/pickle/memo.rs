//! The memo: values that a pickle refers to by slot number.

use super::value::{PackedValue, Value};
use crate::limits::{LimitExceeded, MemoryBudget};
use crate::torch::scalar::FieldError;

/// The memo of a pickle: values that its instructions store and read by slot number.
#[derive(Debug, Default)]
pub(super) struct Memo {
    slots: Vec<PackedValue>,
    /// Values that do not fit in a slot.
    overflow: Vec<Value>,
}

impl Memo {
    /// Returns the number of slots, empty ones included; the next new slot has this number.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the value of a slot; `None` if no value was stored in it.
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<Value> {
        match self.slots.get(slot as usize)?.unpack() {
            Ok(value) => Some(value),
            Err(index) => self.overflow.get(index? as usize).copied(),
        }
    }

    /// Stores a value in a slot; slots that are skipped stay empty. Fails if memory is short, or if
    /// the slot holds a dictionary that is still empty, because other references to that dictionary
    /// look it up in this slot.
    #[inline]
    pub(super) fn put(&mut self, slot: u32, value: Value, budget: &mut MemoryBudget) -> Result<(), FieldError> {
        let packed = match PackedValue::pack(value) {
            Some(packed) => packed,
            None => {
                let reference = PackedValue::overflow(u32::try_from(self.overflow.len()).map_err(|_| LimitExceeded)?);
                budget.push(&mut self.overflow, value)?;
                reference
            }
        };
        let slot = slot as usize;
        while self.slots.len() < slot {
            budget.push(&mut self.slots, PackedValue::EMPTY)?;
        }
        match self.slots.get_mut(slot) {
            // Other references to the new dictionary find it through this slot.
            Some(old) if matches!(old.unpack(), Ok(Value::NewDict(_))) => {
                return Err(FieldError::Invalid("a memo slot is overwritten while its dictionary is new"));
            }
            Some(old) => *old = packed,
            None => budget.push(&mut self.slots, packed)?,
        }
        Ok(())
    }

    /// Returns what a value on the stack is now: an empty dictionary with a memo slot may have been
    /// filled through another reference. Returns any other value unchanged.
    #[inline]
    pub(super) fn current(&self, value: Value) -> Value {
        let Value::NewDict(Some(slot)) = value else { return value };
        self.get(slot).unwrap_or(value)
    }

    /// Replaces the empty dictionary in memo slot `slot` by the value that it became when it was
    /// filled; does nothing for `None`, a dictionary without a slot.
    #[inline]
    pub(super) fn remember(&mut self, slot: Option<u32>, value: Value) {
        if let Some(old) = slot.and_then(|slot| self.slots.get_mut(slot as usize))
            && let Some(packed) = PackedValue::pack(value)
        {
            *old = packed;
        }
    }
}
