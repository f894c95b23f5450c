//! The memo: values that a pickle refers to again, by place.

use super::value::{Packed, Value};
use crate::limits::{Budget, OutOfBudget};
use crate::torch::scalar::Refusal;

/// What was put where.
#[derive(Debug, Default)]
pub(super) struct Memo {
    places: Vec<Packed>,
    /// Values that do not fit a place.
    aside: Vec<Value>,
}

impl Memo {
    /// How many places there are, the next free one.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    #[inline]
    pub(super) fn get(&self, place: u32) -> Option<Value> {
        match self.places.get(place as usize)?.unpack() {
            Ok(value) => Some(value),
            Err(aside) => self.aside.get(aside? as usize).copied(),
        }
    }

    #[inline]
    pub(super) fn put(&mut self, place: u32, value: Value, budget: &mut Budget) -> Result<(), Refusal> {
        let packed = match Packed::pack(value) {
            Some(packed) => packed,
            None => {
                let aside = Packed::aside(u32::try_from(self.aside.len()).map_err(|_| OutOfBudget)?);
                budget.push(&mut self.aside, value)?;
                aside
            }
        };
        let place = place as usize;
        while self.places.len() < place {
            budget.push(&mut self.places, Packed::EMPTY)?;
        }
        match self.places.get_mut(place) {
            // Other references to the new dictionary find it through this place.
            Some(old) if matches!(old.unpack(), Ok(Value::NewDict(_))) => {
                return Err(Refusal::Wrong("a memo place is filled a second time"));
            }
            Some(old) => *old = packed,
            None => budget.push(&mut self.places, packed)?,
        }
        Ok(())
    }

    /// What a value has become: a new dictionary that the memo knows may have been filled through another reference to it.
    #[inline]
    pub(super) fn settled(&self, value: Value) -> Value {
        let Value::NewDict(Some(place)) = value else { return value };
        self.get(place).unwrap_or(value)
    }

    /// Notes what the new dictionary of a place has become.
    #[inline]
    pub(super) fn remember(&mut self, place: Option<u32>, value: Value) {
        if let Some(old) = place.and_then(|place| self.places.get_mut(place as usize))
            && let Some(packed) = Packed::pack(value)
        {
            *old = packed;
        }
    }
}
