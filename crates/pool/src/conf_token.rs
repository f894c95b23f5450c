//! The words and separators of settings in the syntax of `PYTORCH_CUDA_ALLOC_CONF`.

use vramscope_trace::shortened;

use crate::conf_error::{ConfError, ConfErrorKind};

/// The number of bytes in a MiB.
pub(crate) const MIB: u64 = 1 << 20;
/// Maximum length of a piece of the settings' text that an error quotes, in characters.
const MAX_QUOTE_CHARS: usize = 60;

/// A word of the settings' text, or one of `, : [ ]`, with its position.
#[derive(Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// Number of characters before the token in the text.
    position: usize,
}

impl Token {
    /// Returns the token's text for an error message, truncated if it is very long.
    pub(crate) fn quote(&self) -> String {
        shortened(&self.text, MAX_QUOTE_CHARS)
    }

    /// Returns an error of this kind at the token's position.
    pub(crate) fn error(&self, kind: ConfErrorKind) -> ConfError {
        ConfError { position: self.position, kind }
    }

    /// Returns the syntax error for this token; `expected` describes the syntax that is required
    /// instead.
    pub(crate) fn expected(&self, expected: &'static str) -> ConfError {
        self.error(ConfErrorKind::Expected { expected, found: Some(self.quote()) })
    }

    /// Returns the error that this token is not a valid value of the setting `key`; `allowed`
    /// describes the valid values.
    pub(crate) fn out_of_range(&self, key: &'static str, allowed: impl Into<String>) -> ConfError {
        self.error(ConfErrorKind::OutOfRange { key, value: self.quote(), allowed: allowed.into() })
    }

    /// Parses the token as a whole number from 0 on; any other text is an error.
    pub(crate) fn whole_number(&self) -> Result<u64, ConfError> {
        self.text.parse().map_err(|_| self.expected("a whole number"))
    }

    /// Parses the token as a size in MiB, the value of the setting `key`, and returns it in bytes.
    /// A size below `min_mib` is an error. A size whose bytes do not fit in 64 bits becomes the
    /// largest whole number of MiB that does.
    pub(crate) fn bytes_from_mib(&self, key: &'static str, min_mib: u64) -> Result<u64, ConfError> {
        let mib: u64 = self.text.parse().map_err(|_| self.expected("a whole number of MiB"))?;
        match mib {
            mib if mib < min_mib => Err(self.out_of_range(key, format!("at least {min_mib}"))),
            mib => Ok(mib.min(u64::MAX / MIB) * MIB),
        }
    }

    /// Parses the token as a number, the value of the setting `key`. It is an error if `is_allowed`
    /// returns false; `allowed` describes the valid numbers for the message.
    pub(crate) fn number(
        &self,
        key: &'static str,
        allowed: &str,
        is_allowed: impl FnOnce(f64) -> bool,
    ) -> Result<f64, ConfError> {
        let number: f64 = self.text.parse().map_err(|_| self.expected("a number"))?;
        if is_allowed(number) { Ok(number) } else { Err(self.out_of_range(key, allowed)) }
    }

    /// Parses the token as `True` or `False`; any other text or spelling is an error.
    pub(crate) fn flag(&self) -> Result<bool, ConfError> {
        match self.text.as_str() {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(self.expected("True or False")),
        }
    }
}

/// An iterator over the tokens of the settings' text.
#[derive(Clone)]
pub(crate) struct Tokens<'a> {
    text: &'a str,
    /// The number of characters consumed.
    position: usize,
    /// The characters that are not consumed yet.
    rest: std::iter::Peekable<std::str::Chars<'a>>,
}

impl<'a> Tokens<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text, position: 0, rest: text.chars().peekable() }
    }

    /// Removes and returns the next character of the text if `accepts` returns true for it.
    /// Otherwise, and at the end of the text, removes nothing and returns `None`.
    fn next_char_if(&mut self, accepts: impl FnOnce(char) -> bool) -> Option<char> {
        let char = self.rest.next_if(|&char| accepts(char))?;
        self.position += 1;
        Some(char)
    }

    /// Removes and returns the next token; `None` at the end of the text. White space is skipped,
    /// even within a word.
    pub(crate) fn next(&mut self) -> Option<Token> {
        let is_space = |char: char| matches!(char, ' ' | '\t'..='\r');
        let is_separator = |char| matches!(char, ',' | ':' | '[' | ']');
        while self.next_char_if(is_space).is_some() {}
        let position = self.position;
        if let Some(separator) = self.next_char_if(is_separator) {
            return Some(Token { text: separator.into(), position });
        }
        let mut text = String::new();
        while let Some(char) = self.next_char_if(|char| !is_separator(char)) {
            if !is_space(char) {
                text.push(char);
            }
        }
        (!text.is_empty()).then_some(Token { text, position })
    }

    /// Removes and returns the next token. The end of the text is an error; `expected` describes
    /// what is missing.
    pub(crate) fn expect(&mut self, expected: &'static str) -> Result<Token, ConfError> {
        let end = || ConfError {
            position: self.text.chars().count(),
            kind: ConfErrorKind::Expected { expected, found: None },
        };
        self.next().ok_or_else(end)
    }

    /// Removes the next token of the settings' text; an error if it is not a colon.
    pub(crate) fn expect_colon(&mut self) -> Result<(), ConfError> {
        let token = self.expect("a colon")?;
        if token.text == ":" { Ok(()) } else { Err(token.expected("a colon")) }
    }

    /// Removes the rest of an item, with the comma after it. Commas between brackets belong to the
    /// item.
    pub(crate) fn skip_item(&mut self) {
        let mut depth = 0u64;
        while let Some(token) = self.next() {
            match token.text.as_str() {
                "[" => depth += 1,
                "]" => depth = depth.saturating_sub(1),
                "," if depth == 0 => return,
                _ => {}
            }
        }
    }
}
