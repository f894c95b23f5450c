//! A query: terms that an item must all match.

use super::condition::Condition;
use super::error::SearchTermError;
use super::parser;
use super::term::Term;

/// A query in the search language of [this module](crate::query). An empty query matches
/// everything.
///
/// ```
/// use vramscope_insight::query::Query;
///
/// let query = Query::parse("adam >100MiB -category:gradient")?;
/// assert_eq!(
///     query.describe(),
///     "“adam” in a function, file, module, category or mark; size more than 100 MiB; \
///      not: category gradient"
/// );
/// let error = Query::parse("adam size>big").unwrap_err();
/// assert_eq!((error.term(), error.range()), ("size>big", 5..13));
/// # Ok::<(), vramscope_insight::query::SearchTermError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    text: String,
    terms: Vec<Term>,
}

impl Query {
    /// Reads a query.
    ///
    /// # Errors
    /// If a term is invalid; the error names it, the reason and the allowed terms.
    pub fn parse(text: &str) -> Result<Self, SearchTermError> {
        Ok(Self { text: text.to_owned(), terms: parser::terms(text)? })
    }

    /// Creates the query for everything that contains the byte at an address, as `addr:` does.
    #[must_use]
    pub fn containing(address: u64) -> Self {
        let text = format!("addr:{address:#x}");
        let term = Term { range: 0..text.len(), is_negated: false, condition: Condition::Address(address) };
        Self { text, terms: vec![term] }
    }

    /// Returns the query as it was typed.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the terms in the order in which they were typed.
    #[must_use]
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Returns true if the query has no terms, and so matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns true if a term is about categories.
    #[must_use]
    pub fn has_categories(&self) -> bool {
        self.terms.iter().any(|term| matches!(term.condition, Condition::Categories(_)))
    }

    /// Returns the query in words, its terms separated by semicolons; `everything` without terms.
    #[must_use]
    pub fn describe(&self) -> String {
        if self.terms.is_empty() {
            return "everything".to_owned();
        }
        self.terms.iter().map(Term::describe).collect::<Vec<_>>().join("; ")
    }
}
