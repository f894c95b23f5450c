//! Numbers on the command line of a program that measures.

use std::collections::BTreeMap;

/// The numbers given on the command line as `KEY=NUMBER`, by key.
#[derive(Debug)]
pub struct Numbers(BTreeMap<String, u64>);

impl Numbers {
    /// Parses arguments; `None` if one is not `KEY=NUMBER`.
    #[must_use]
    pub fn parse(arguments: &[String]) -> Option<Self> {
        let number = |argument: &String| {
            let (name, number) = argument.split_once('=')?;
            Some((name.to_owned(), number.parse().ok()?))
        };
        arguments.iter().map(number).collect::<Option<_>>().map(Self)
    }

    /// Removes and returns a number, or `default` if it was not given.
    pub fn take(&mut self, name: &str, default: u64) -> u64 {
        self.0.remove(name).unwrap_or(default)
    }

    /// Returns true if every number has been taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
