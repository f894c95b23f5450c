//! The token: who has it may.

use std::fmt;

use subtle::ConstantTimeEq;

/// Bytes of randomness in a token that is made.
const RANDOM_BYTES: usize = 16;
/// The most characters that a token may have.
const MAX_CHARS: usize = 256;

/// A secret that whoever wants to watch, or to give commands, must say. It is not shown by `{:?}`.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// A secret that somebody chose: letters, digits and any of `-._~+/=`.
    ///
    /// # Errors
    /// When the text is empty, has other characters or more than 256.
    pub fn new(text: impl Into<String>) -> Result<Self, TokenError> {
        let text = text.into();
        let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        let is_token = !text.is_empty() && text.len() <= MAX_CHARS && text.bytes().all(is_fine);
        if is_token { Ok(Self(text)) } else { Err(TokenError) }
    }

    /// A new one of 128 random bits.
    ///
    /// # Errors
    /// When the operating system has no randomness to give.
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0; RANDOM_BYTES];
        getrandom::fill(&mut bytes)?;
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        // Six bits a character, as in base64 for addresses; the last one has two.
        let bits = u128::from_be_bytes(bytes);
        let digit = |n: u32| DIGITS[(bits >> (n * 6) & 63) as usize];
        Ok(Self((0..22).map(|n| char::from(digit(n))).collect()))
    }

    /// The secret itself.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Whether this is it. Takes as long whatever part of it is right.
    #[must_use]
    pub fn is(&self, said: &str) -> bool {
        self.0.as_bytes().ct_eq(said.as_bytes()).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A text that is no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenError;

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a token is 1 to {MAX_CHARS} letters, digits and characters of -._~+/=")
    }
}

impl std::error::Error for TokenError {}
