//! A small part of the text as a tree of values.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::torch::settings::PLAIN_VALUE_BYTES;

/// Reads any value; `None` where it is larger than what is left.
pub(super) struct Plain<'l> {
    pub(super) left: &'l mut usize,
}

impl Plain<'_> {
    /// Pays for a value of so many bytes of text.
    fn take(&mut self, bytes: usize) -> bool {
        let left = self.left.checked_sub(PLAIN_VALUE_BYTES.saturating_add(bytes));
        *self.left = left.unwrap_or(0);
        left.is_some()
    }
}

impl<'de> DeserializeSeed<'de> for Plain<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Plain<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(mut self) -> Result<Option<Value>, E> {
        Ok(self.take(0).then_some(Value::Null))
    }

    fn visit_bool<E: Error>(mut self, value: bool) -> Result<Option<Value>, E> {
        Ok(self.take(0).then_some(Value::Bool(value)))
    }

    fn visit_i64<E: Error>(mut self, number: i64) -> Result<Option<Value>, E> {
        Ok(self.take(0).then(|| number.into()))
    }

    fn visit_u64<E: Error>(mut self, number: u64) -> Result<Option<Value>, E> {
        Ok(self.take(0).then(|| number.into()))
    }

    fn visit_f64<E: Error>(mut self, number: f64) -> Result<Option<Value>, E> {
        Ok(self.take(0).then(|| number.into()))
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<Option<Value>, E> {
        Ok(self.take(text.len()).then(|| text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Option<Value>, A::Error> {
        let mut values = Vec::new();
        let mut fits = self.take(0);
        while fits {
            match list.next_element_seed(Plain { left: self.left })? {
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
        let mut fits = self.take(0);
        while fits {
            let Some(key) = map.next_key::<String>()? else { return Ok(Some(Value::Object(values))) };
            fits = self.take(key.len());
            if !fits {
                map.next_value::<IgnoredAny>()?;
            } else if let Some(value) = map.next_value_seed(Plain { left: self.left })? {
                values.insert(key, value);
            } else {
                fits = false;
            }
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}
