//! Walks JSON without building a tree of values: a dictionary hands its keys to a [`Part`], a list its items to [`Rows`], anything
//! else becomes a [`Scalar`].

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::torch::key::Key;
use crate::torch::scalar::{Refusal, Scalar};

/// A dictionary being read.
pub(super) trait Part {
    /// Takes the value of a key. What is neither a list nor a dictionary of interest goes to [`scalar`](Self::scalar).
    fn key<'de, A: MapAccess<'de>>(&mut self, key: Key, map: &mut A) -> Result<(), A::Error> {
        map.next_value_seed(One(|value: Scalar<'_>| self.scalar(key, value)))
    }

    /// Takes the value of a key.
    fn scalar(&mut self, key: Key, value: Scalar<'_>) -> Result<(), Refusal>;
}

/// A list being read.
pub(super) trait Rows {
    /// Takes the next item; `None` at the end.
    fn row<'de, A: SeqAccess<'de>>(&mut self, list: &mut A) -> Result<Option<()>, A::Error>;
}

/// Reads a dictionary into a part.
pub(super) struct Dict<'p, P>(pub(super) &'p mut P);

impl<'de, P: Part> DeserializeSeed<'de> for Dict<'_, P> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, P: Part> Visitor<'de> for Dict<'_, P> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a dictionary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(Text(Key::of))? {
            match key {
                Some(key) => self.0.key(key, &mut map)?,
                None => map.next_value::<IgnoredAny>().map(|_| ())?,
            }
        }
        Ok(())
    }
}

/// Reads a list into rows; nothing at all is an empty list.
pub(super) struct List<'r, R>(pub(super) &'r mut R);

impl<'de, R: Rows> DeserializeSeed<'de> for List<'_, R> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: Rows> Visitor<'de> for List<'_, R> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while self.0.row(&mut list)?.is_some() {}
        Ok(())
    }
}

/// Reads a text and gives what a function makes of it.
pub(super) struct Text<F>(pub(super) F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Text<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Text<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        Ok((self.0)(text))
    }
}

/// Reads any value and hands it to a function as a scalar.
pub(super) struct One<F>(pub(super) F);

impl<F: FnOnce(Scalar<'_>) -> Result<(), Refusal>> One<F> {
    fn take<E: Error>(self, value: Scalar<'_>) -> Result<(), E> {
        (self.0)(value).map_err(E::custom)
    }
}

impl<'de, F: FnOnce(Scalar<'_>) -> Result<(), Refusal>> DeserializeSeed<'de> for One<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnOnce(Scalar<'_>) -> Result<(), Refusal>> Visitor<'de> for One<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.take(Scalar::Nothing)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.take(Scalar::Bool(value))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.take(Scalar::Int(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.take(i64::try_from(number).map_or(Scalar::Unsigned(number), Scalar::Int))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.take(Scalar::Float(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.take(Scalar::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        // The one list that is looked at here is a pair of numbers, for which JSON has no tuple.
        let (mut numbers, mut count) = ([None; 2], 0usize);
        while let Some(number) = list.next_element_seed(Number)? {
            if let Some(place) = numbers.get_mut(count) {
                *place = number;
            }
            count += 1;
        }
        self.take(match (count, numbers) {
            (2, [Some(first), Some(second)]) => Scalar::Pair(first, second),
            _ => Scalar::Other,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.take(Scalar::Other)
    }
}

/// What is done with a scalar.
type Take<'t> = dyn FnMut(Scalar<'_>) -> Result<(), Refusal> + 't;

/// Reads any value and gives it where it is a whole number.
struct Number;

impl<'de> DeserializeSeed<'de> for Number {
    type Value = Option<u64>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<u64>, D::Error> {
        let mut number = None;
        let mut take = |value: Scalar<'_>| {
            number = value.count();
            Ok(())
        };
        // By a trait object, as a list in a list would otherwise make a type in a type without end.
        let take: &mut Take<'_> = &mut take;
        One(take).deserialize(deserializer)?;
        Ok(number)
    }
}
