//! Reads a small part of the text as a tree of values, up to a size limit.

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::visit::AnySeed;
use crate::torch::settings::VALUE_BYTES;

/// Reads any JSON value as a tree; returns `None` if the tree takes more than `remaining` bytes. A
/// tree takes the bytes of its texts, plus [`VALUE_BYTES`] for each of its values.
pub(super) struct BoundedValue<'l> {
    /// Bytes that values may still take.
    pub(super) remaining: &'l mut usize,
}

impl BoundedValue<'_> {
    /// Subtracts `bytes`, the length of a value's text, and [`VALUE_BYTES`] from `remaining`.
    /// Returns false, and sets `remaining` to 0, if fewer bytes remain.
    fn spend(&mut self, bytes: usize) -> bool {
        let remaining = self.remaining.checked_sub(VALUE_BYTES.saturating_add(bytes));
        *self.remaining = remaining.unwrap_or(0);
        remaining.is_some()
    }
}

impl<'de> Visitor<'de> for BoundedValue<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: Error>(mut self) -> Result<Option<Value>, E> {
        Ok(self.spend(0).then_some(Value::Null))
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<Option<Value>, E> {
        Ok(self.spend(0).then_some(Value::Bool(value)))
    }

    fn visit_i64<E: Error>(mut self, number: i64) -> Result<Option<Value>, E> {
        Ok(self.spend(0).then(|| number.into()))
    }

    fn visit_u64<E: Error>(mut self, number: u64) -> Result<Option<Value>, E> {
        Ok(self.spend(0).then(|| number.into()))
    }

    fn visit_f64<E: Error>(mut self, number: f64) -> Result<Option<Value>, E> {
        Ok(self.spend(0).then(|| number.into()))
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<Option<Value>, E> {
        Ok(self.spend(text.len()).then(|| text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Option<Value>, A::Error> {
        let mut values = Vec::new();
        let mut fits = self.spend(0);
        while fits {
            match list.next_element_seed(AnySeed(BoundedValue { remaining: self.remaining }))? {
                Some(Some(value)) => values.push(value),
                Some(None) => fits = false,
                None => return Ok(Some(Value::Array(values))),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Option<Value>, A::Error> {
        let mut values = Map::new();
        let mut fits = self.spend(0);
        while fits {
            let Some(key) = map.next_key::<String>()? else { return Ok(Some(Value::Object(values))) };
            fits = self.spend(key.len());
            if !fits {
                map.next_value::<IgnoredAny>()?;
            } else if let Some(value) = map.next_value_seed(AnySeed(BoundedValue { remaining: self.remaining }))? {
                values.insert(key, value);
            } else {
                fits = false;
            }
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}
