//! The token: who has it may.

use std::fmt;

use axum::http::uri::{Authority, Uri};
use axum::http::{HeaderMap, header};
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
        getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
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

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.is(&other.0)
    }
}

impl Eq for Token {}

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

/// Who may do what.
#[derive(Debug)]
pub(super) struct Access {
    token: Option<Token>,
    /// Nothing is to be had without the token, rather than commands alone.
    is_closed: bool,
}

/// What the one who asks may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    /// Look at everything.
    pub(super) watch: bool,
    /// Give commands.
    pub(super) command: bool,
    /// A token was said, and it was wrong.
    pub(super) is_wrong: bool,
}

impl Access {
    /// As the options say. What other machines can reach takes a token, and so do commands.
    pub(super) fn new(token: Option<Token>, is_loopback: bool, has_commands: bool) -> std::io::Result<Self> {
        let is_closed = token.is_some() || !is_loopback;
        let token = match token {
            None if is_closed || has_commands => Some(Token::random()?),
            token => token,
        };
        Ok(Self { token, is_closed })
    }

    /// What has to be said, if anything.
    pub(super) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Whether this is the token.
    pub(super) fn admits(&self, said: &str) -> bool {
        self.token.as_ref().is_some_and(|token| token.is(said))
    }

    /// What a request has the right to.
    pub(super) fn rights(&self, uri: &Uri, headers: &HeaderMap) -> Rights {
        let said = || said_in_query(uri).into_iter().chain(said_as_bearer(headers).map(str::to_owned));
        let is_said = said().any(|said| self.admits(&said));
        let has_token = is_said || said_in_cookies(headers).any(|said| self.admits(said));
        let is_wrong = self.token.is_some() && !has_token && said().next().is_some();
        Rights { watch: !self.is_closed || has_token, command: has_token, is_wrong }
    }

    /// Where a browser is to go that asks for the page and says the right token in its address: to the same without it, relative to where it is.
    pub(super) fn address_without_token(&self, uri: &Uri) -> Option<String> {
        said_in_query(uri).is_some_and(|said| self.admits(&said)).then(|| {
            let is_other = |parameter: &&str| !parameter.is_empty() && parameter.split('=').next() != Some("token");
            let others: Vec<_> = uri.query().unwrap_or_default().split('&').filter(is_other).collect();
            if others.is_empty() { "./".to_owned() } else { format!("./?{}", others.join("&")) }
        })
    }

    /// The cookie that stands for the token from then on. It has no path, so that it is for the folder in which the browser sees the page,
    /// wherever a proxy has put that.
    pub(super) fn cookie(&self, headers: &HeaderMap, is_secure: bool) -> Option<String> {
        let secure = if is_secure { "; Secure" } else { "" };
        let token = self.token()?.secret();
        Some(format!("{}={token}; HttpOnly; SameSite=Lax{secure}", cookie_name(headers)))
    }
}

fn said_in_query(uri: &Uri) -> Option<String> {
    let parameters = uri.query()?.split('&');
    parameters.filter_map(|parameter| parameter.strip_prefix("token=")).map(unescaped).next()
}

fn said_as_bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Browsers tell their cookies to every port of a host; the port by which this one is reached tells servers apart.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).and_then(|host| host.parse().ok());
    let port = host.and_then(|host: Authority| host.port_u16());
    port.map_or_else(|| "vramscope".to_owned(), |port| format!("vramscope_{port}"))
}

fn said_in_cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let name = cookie_name(headers);
    // One by one: those of other servers at this host may be in any writing.
    let all = headers.get_all(header::COOKIE).into_iter().flat_map(|line| line.as_bytes().split(|&byte| byte == b';'));
    let cookies = all.filter_map(|cookie| std::str::from_utf8(cookie).ok()?.trim().split_once('='));
    cookies.filter(move |(this, _)| *this == name).map(|(_, token)| token)
}

/// Undoes what [`escaped`](super::escaped) does; what is no escape stays as it is.
pub(crate) fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let escape = digits.filter(|_| *first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(escape.unwrap_or(*first));
        rest = if escape.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "right-Token_1";

    fn access(is_closed: bool) -> Access {
        Access { token: Token::new(TOKEN).ok(), is_closed }
    }

    #[track_caller]
    fn check(uri: &str, headers: &[(&'static str, &str)], has_token: bool, is_wrong: bool) {
        let mut map = HeaderMap::new();
        map.insert(header::HOST, "localhost:9000".parse().expect("a header value"));
        for (name, value) in headers {
            map.append(*name, value.parse().expect("a header value"));
        }
        let uri = uri.parse().expect("an address");
        for is_closed in [false, true] {
            let expected = Rights { watch: has_token || !is_closed, command: has_token, is_wrong };
            assert_eq!(access(is_closed).rights(&uri, &map), expected, "{uri} {headers:?}");
        }
    }

    #[test]
    fn a_token_is_said_in_any_of_four_ways() {
        check("/ws", &[], false, false);
        check("/ws?token=right-Token_1", &[], true, false);
        check("/ws?notes=1&token=right%2DToken_1", &[], true, false);
        check("/ws?token=", &[], false, true);
        check("/ws?token=right-Token_", &[], false, true);
        check("/ws?token=RIGHT-Token_1", &[], false, true);
        check("/ws?token=right-Token_1%00", &[], false, true);
        check("/ws?token=%ff%f", &[], false, true);
        check("/ws?tokens=right-Token_1", &[], false, false);
        check("/ws", &[("authorization", "Bearer right-Token_1")], true, false);
        check("/ws", &[("authorization", "bearer  right-Token_1")], true, false);
        check("/ws", &[("authorization", "Basic right-Token_1")], false, false);
        check("/ws", &[("authorization", "Bearer wrong")], false, true);
        check("/ws?token=wrong", &[("authorization", "Bearer right-Token_1")], true, false);
        check("/ws", &[("cookie", "a=b; vramscope_9000=right-Token_1; c")], true, false);
        check("/ws", &[("cookie", "a=b"), ("cookie", "vramscope_9000=right-Token_1")], true, false);
        // That of a server behind another port, and one from before.
        check("/ws", &[("cookie", "vramscope_7791=right-Token_1")], false, false);
        check("/ws", &[("cookie", "vramscope_9000=old")], false, false);
        check("/ws", &[("cookie", "name=J\u{fc}rgen; vramscope_9000=right-Token_1")], true, false);
        check("/ws", &[("cookie", "vramscope_9000=old; vramscope_9000=right-Token_1")], true, false);
    }

    #[test]
    fn the_token_is_taken_out_of_an_address() {
        let check = |uri: &str, expected: Option<&str>| {
            let uri = uri.parse().expect("an address");
            assert_eq!(access(true).address_without_token(&uri).as_deref(), expected, "{uri}");
        };
        check("/?token=right-Token_1", Some("./"));
        check("/?trace=files/0/a%2520b.vram&token=right-Token_1", Some("./?trace=files/0/a%2520b.vram"));
        check("/?token=right-Token_1&a=1&&token=other&b", Some("./?a=1&b"));
        check("/?token=other", None);
        check("/", None);
    }

    #[test]
    fn whoever_can_be_reached_has_a_token() {
        let check = |given: bool, is_loopback: bool, has_commands: bool, has_token: bool, is_closed: bool| {
            let token = given.then(|| Token::new(TOKEN).expect("a token"));
            let access = Access::new(token, is_loopback, has_commands).expect("randomness");
            assert_eq!((access.token().is_some(), access.is_closed), (has_token, is_closed));
        };
        check(false, true, false, false, false);
        check(false, true, true, true, false);
        check(false, false, false, true, true);
        check(true, true, false, true, true);
    }

    #[test]
    fn a_token_that_is_made_is_not_made_twice_and_not_shown() {
        let tokens: std::collections::HashSet<String> =
            (0..100).map(|_| Token::random().expect("randomness").secret().to_owned()).collect();
        assert_eq!(tokens.len(), 100);
        assert!(tokens.iter().all(|token| token.len() == 22 && Token::new(token.as_str()).is_ok()));
        let all: std::collections::HashSet<char> = tokens.iter().flat_map(|token| token.chars()).collect();
        assert_eq!(all.len(), 64, "every digit has its turn");
        let options = super::super::ServerOptions { token: Token::new(TOKEN).ok(), ..Default::default() };
        assert!(!format!("{options:?} {:?}", access(true)).contains(TOKEN));
        for wrong in ["", "a b", "a\"b", "\u{e4}", "a;b", "a\r\nb", &"a".repeat(257)] {
            assert!(Token::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
