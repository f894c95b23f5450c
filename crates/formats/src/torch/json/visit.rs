//! Visits JSON without building a tree of values: a dictionary passes its keys to a [`DictReader`],
//! a list its items to a [`ListReader`], and any other value becomes a [`Scalar`].

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::torch::key::SnapshotKey;
use crate::torch::scalar::{FieldError, Scalar};

/// Receives the keys of a JSON dictionary that the import uses, one at a time, and reads their
/// values.
pub(super) trait DictReader {
    /// Reads the value of `key`, which is next in `map`. Unless overridden, reads it as a
    /// [`Scalar`] and passes it to [`scalar`](Self::scalar).
    fn key<'de, A: MapAccess<'de>>(&mut self, key: SnapshotKey, map: &mut A) -> Result<(), A::Error> {
        map.next_value_seed(ScalarSeed(|value: Scalar<'_>| self.scalar(key, value)))
    }

    /// Stores the value of `key`. A list of two integers arrives as [`Scalar::Pair`], any other
    /// list or dictionary as [`Scalar::Other`].
    fn scalar(&mut self, key: SnapshotKey, value: Scalar<'_>) -> Result<(), FieldError>;
}

/// Reads the items of a JSON list, one at a time.
pub(super) trait ListReader {
    /// Reads the next item from `list`; returns `None` at its end.
    fn item<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error>;
}

/// Deserializes a dictionary by passing the keys that the import uses to a [`DictReader`]; skips
/// others.
pub(super) struct DictSeed<'p, P>(pub(super) &'p mut P);

impl<'de, P: DictReader> DeserializeSeed<'de> for DictSeed<'_, P> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, P: DictReader> Visitor<'de> for DictSeed<'_, P> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(StringSeed(SnapshotKey::from_name))? {
            match key {
                Some(key) => self.0.key(key, &mut map)?,
                None => map.next_value::<IgnoredAny>().map(|_| ())?,
            }
        }
        Ok(())
    }
}

/// Deserializes a list by letting a [`ListReader`] read its items; `null` counts as an empty list.
pub(super) struct ListSeed<'r, R>(pub(super) &'r mut R);

impl<'de, R: ListReader> DeserializeSeed<'de> for ListSeed<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: ListReader> Visitor<'de> for ListSeed<'_, R> {
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
pub(super) struct StringSeed<F>(pub(super) F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for StringSeed<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for StringSeed<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
    }
}

/// Deserializes any JSON value as a [`Scalar`] and passes it to a function.
pub(super) struct ScalarSeed<F>(pub(super) F);

impl<F: FnOnce(Scalar<'_>) -> Result<(), FieldError>> ScalarSeed<F> {
    /// Calls the wrapped function with a value and converts its error to one of the deserializer.
    fn pass<E: Error>(self, value: Scalar<'_>) -> Result<(), E> {
        (self.0)(value).map_err(E::custom)
    }
}

impl<'de, F: FnOnce(Scalar<'_>) -> Result<(), FieldError>> DeserializeSeed<'de> for ScalarSeed<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnOnce(Scalar<'_>) -> Result<(), FieldError>> Visitor<'de> for ScalarSeed<F> {
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
        // The only list of interest is a pair of numbers, for which JSON has no tuple.
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

/// A function that receives a scalar value; its error ends the import.
type ScalarCallback<'t> = dyn FnMut(Scalar<'_>) -> Result<(), FieldError> + 't;

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
        ScalarSeed(callback).deserialize(deserializer)?;
        Ok(number)
    }
}
