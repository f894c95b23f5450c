//! Visits JSON without building a tree of values: a dictionary passes its keys to a [`DictReader`],
//! a list its items to a [`ListReader`], and any other value becomes a [`Scalar`].

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::torch::key::SnapshotKey;
use crate::torch::scalar::{FieldResult, Scalar};

/// Receives the keys of a JSON dictionary that the import uses, one at a time, and reads their
/// values.
pub(super) trait DictReader {
    /// Reads the value of `key`, which is next in `map`. Unless overridden, reads it as a
    /// [`Scalar`] and passes it to [`scalar`](Self::scalar).
    fn key<'de, A: MapAccess<'de>>(&mut self, key: SnapshotKey, map: &mut A) -> Result<(), A::Error> {
        map.next_value_seed(AnySeed(ScalarVisitor(|value: Scalar<'_>| self.scalar(key, value))))
    }

    /// Stores the value of `key`. A list of two integers arrives as [`Scalar::Pair`], any other
    /// list or dictionary as [`Scalar::Other`].
    fn scalar(&mut self, key: SnapshotKey, value: Scalar<'_>) -> FieldResult;
}

/// Reads the items of a JSON list, one at a time.
pub(super) trait ListReader {
    /// Reads the next item from `list`; returns `None` at its end.
    fn item<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error>;
}

/// Reads the next JSON value, of any type, with a visitor.
pub(super) struct AnySeed<V>(pub(super) V);

impl<'de, V: Visitor<'de>> DeserializeSeed<'de> for AnySeed<V> {
    type Value = V::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        deserializer.deserialize_any(self.0)
    }
}

/// Deserializes a dictionary by passing the keys that the import uses to a [`DictReader`]; skips
/// others.
pub(super) struct DictVisitor<'p, P>(pub(super) &'p mut P);

impl<'de, P: DictReader> Visitor<'de> for DictVisitor<'_, P> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(AnySeed(StringVisitor(SnapshotKey::from_name)))? {
            match key {
                Some(key) => self.0.key(key, &mut map)?,
                None => map.next_value::<IgnoredAny>().map(|_| ())?,
            }
        }
        Ok(())
    }
}

/// Deserializes a list by letting a [`ListReader`] read its items; `null` counts as an empty list.
pub(super) struct ListVisitor<'r, R>(pub(super) &'r mut R);

impl<'de, R: ListReader> Visitor<'de> for ListVisitor<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while self.0.item(&mut list)?.is_some() {}
        Ok(())
    }
}

/// Deserializes a string by passing it to a function, whose result it returns; the string is not
/// copied.
pub(super) struct StringVisitor<F>(pub(super) F);

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for StringVisitor<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
    }
}

/// Deserializes any JSON value as a [`Scalar`] and passes it to a function.
pub(super) struct ScalarVisitor<F>(pub(super) F);

impl<F: FnOnce(Scalar<'_>) -> FieldResult> ScalarVisitor<F> {
    /// Calls the wrapped function with a value and converts its error to the deserializer's error
    /// type.
    fn pass<E: Error>(self, value: Scalar<'_>) -> Result<(), E> {
        (self.0)(value).map_err(E::custom)
    }
}

impl<'de, F: FnOnce(Scalar<'_>) -> FieldResult> Visitor<'de> for ScalarVisitor<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.pass(Scalar::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.pass(Scalar::Bool(value))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.pass(Scalar::Int(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.pass(i64::try_from(number).map_or(Scalar::Unsigned(number), Scalar::Int))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.pass(Scalar::Float(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.pass(Scalar::Text(text, None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        // A list is used only if it is a pair of integers, because JSON has no tuples.
        let (mut numbers, mut count) = ([None; 2], 0usize);
        while let Some(number) = list.next_element_seed(IntegerSeed)? {
            if let Some(slot) = numbers.get_mut(count) {
                *slot = number;
            }
            count += 1;
        }
        self.pass(match (count, numbers) {
            (2, [Some(first), Some(second)]) => Scalar::Pair(first, second),
            _ => Scalar::Other,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.pass(Scalar::Other)
    }
}

/// A function that receives a value of the snapshot that is not a list or dictionary; its error
/// ends the import.
type ScalarCallback<'t> = dyn FnMut(Scalar<'_>) -> FieldResult + 't;

/// Deserializes any value; returns it if it is a non-negative integer, otherwise `None`.
struct IntegerSeed;

impl<'de> DeserializeSeed<'de> for IntegerSeed {
    type Value = Option<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u64>, D::Error> {
        let mut number = None;
        let mut callback = |value: Scalar<'_>| {
            number = value.as_u64();
            Ok(())
        };
        // A trait object, because a list in a list would otherwise produce an infinite type.
        let callback: &mut ScalarCallback<'_> = &mut callback;
        deserializer.deserialize_any(ScalarVisitor(callback))?;
        Ok(number)
    }
}
