//! Splits the text of a query into terms.

use std::ops::Range;

use super::error::SearchTermError;

/// One term of a query as text, without the sign of negation and without quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    /// Where the term is in the query, in bytes, with its sign and quotes.
    pub(super) range: Range<usize>,
    /// Whether `-` precedes the term.
    pub(super) is_negated: bool,
    /// The term without sign and quotes.
    pub(super) text: String,
    /// Number of bytes of `text` before the first quoted character; the length of `text` if nothing
    /// is quoted. Only there can a keyword, an operator or a line number be.
    pub(super) plain_len: usize,
}

impl Token {
    /// Returns the part of the term before its first quoted character.
    pub(super) fn plain(&self) -> &str {
        self.text.get(..self.plain_len).unwrap_or_default()
    }

    /// Returns true if the term begins with a quote.
    pub(super) fn is_quoted(&self) -> bool {
        self.plain_len == 0 && !self.text.is_empty()
    }

    /// Returns true if a part of the term is in quotes.
    pub(super) fn has_quotes(&self) -> bool {
        self.plain_len < self.text.len()
    }
}

/// Splits a query at white space outside of quotes.
///
/// # Errors
/// If a quote is not closed, or a term is empty.
pub(super) fn tokens(query: &str) -> Result<Vec<Token>, SearchTermError> {
    let mut tokens = Vec::new();
    let mut chars = query.char_indices().peekable();
    while let Some(&(start, first)) = chars.peek() {
        if first.is_whitespace() {
            chars.next();
            continue;
        }
        let is_negated = first == '-';
        if is_negated {
            chars.next();
        }
        let mut text = String::new();
        let mut plain_len = None;
        let mut is_quoting = false;
        let mut end = query.len();
        while let Some(&(at, next)) = chars.peek() {
            if next.is_whitespace() && !is_quoting {
                end = at;
                break;
            }
            chars.next();
            match next {
                '"' => {
                    is_quoting = !is_quoting;
                    plain_len.get_or_insert(text.len());
                }
                '\\' if is_quoting && chars.peek().is_some_and(|&(_, after)| matches!(after, '"' | '\\')) => {
                    text.extend(chars.next().map(|(_, escaped)| escaped));
                }
                _ => text.push(next),
            }
        }
        let range = start..end;
        if is_quoting {
            let allowed = "a second \" at the end of the quoted text".to_owned();
            return Err(SearchTermError::new(query, range, "the quote is not closed".to_owned(), allowed));
        }
        if text.is_empty() {
            let allowed = "a term such as adam or >100MiB, or -adam to exclude it".to_owned();
            return Err(SearchTermError::new(query, range, "it is empty".to_owned(), allowed));
        }
        let plain_len = plain_len.unwrap_or(text.len());
        tokens.push(Token { range, is_negated, text, plain_len });
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the terms of a query, each as text, number of bytes outside of quotes, and whether it
    /// is negated.
    #[track_caller]
    fn check(query: &str, expected: &[(&str, usize, bool)]) {
        let tokens = tokens(query).expect("the query has terms only");
        let found: Vec<_> = tokens.iter().map(|one| (one.text.as_str(), one.plain_len, one.is_negated)).collect();
        assert_eq!(found, expected, "{query}");
    }

    #[test]
    fn terms_are_split_at_spaces_outside_of_quotes() {
        check("", &[]);
        check("  a \t-b ", &[("a", 1, false), ("b", 1, true)]);
        check("\"a b\" file:\"c d\"e", &[("a b", 0, false), ("file:c de", 5, false)]);
        check(r#""say \"no\"" a\b"#, &[("say \"no\"", 0, false), ("a\\b", 3, false)]);
        check("-\"-x\" é", &[("-x", 0, true), ("é", 2, false)]);
    }

    #[test]
    fn open_quotes_and_empty_terms_are_errors() {
        for (query, range) in [("a \"b c", 2..6), ("a -", 2..3), ("\"\"", 0..2), ("-\"\" b", 0..3)] {
            assert_eq!(tokens(query).map_err(|error| error.range()), Err(range), "{query}");
        }
    }
}
