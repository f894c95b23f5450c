//! A list of numbered definitions that forgets the oldest ones.

use std::collections::VecDeque;

/// A list of definitions, numbered from 1. Each time the tracker empties its tables, a new
/// generation of definitions begins. The current and the previous generation are kept.
#[derive(Debug)]
pub(crate) struct Numbered<T> {
    definitions: VecDeque<T>,
    /// Number of the oldest definition.
    first: usize,
    /// Number of definitions of the previous generation.
    old: usize,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { definitions: VecDeque::new(), first: 1, old: 0 }
    }
}

impl<T> Numbered<T> {
    /// Returns the index, among the kept definitions, of the definition with this number; `None` if
    /// it has been forgotten.
    pub(crate) fn index(&self, number: u32) -> Option<usize> {
        (number as usize).checked_sub(self.first)
    }

    /// Returns the definition with this number; `None` if it has been forgotten or does not exist.
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.definitions.get(self.index(number)?)
    }

    /// Adds the definition with the next number.
    pub(crate) fn push(&mut self, definition: T) {
        self.definitions.push_back(definition);
    }

    /// Begins a new generation: the current one becomes the previous one, and the previous one is
    /// forgotten.
    pub(crate) fn begin_generation(&mut self) {
        self.definitions.drain(..self.old);
        self.first += self.old;
        self.old = self.definitions.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_generations_are_kept() {
        let mut numbered = Numbered::default();
        ["a", "b"].into_iter().for_each(|text| numbered.push(text));
        numbered.begin_generation();
        numbered.push("c");
        assert_eq!(
            [0, 1, 2, 3, 4].map(|number| numbered.get(number).copied()),
            [None, Some("a"), Some("b"), Some("c"), None]
        );
        numbered.begin_generation();
        numbered.push("d");
        assert_eq!(
            [1, 2, 3, 4, 5].map(|number| numbered.get(number).copied()),
            [None, None, Some("c"), Some("d"), None]
        );
        assert_eq!([2, 3, 4].map(|number| numbered.index(number)), [None, Some(0), Some(1)]);
        numbered.begin_generation();
        numbered.begin_generation();
        assert_eq!(numbered.get(4), None);
    }
}
