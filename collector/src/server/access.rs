//! The access token: how clients send it, and what it permits.

use std::fmt;
use std::io;

use axum::http::uri::{Authority, Uri};
use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cookie::{Cookie, SameSite};
use percent_encoding::percent_decode_str;
use subtle::ConstantTimeEq;

/// Number of random bytes in a generated token.
const TOKEN_RANDOM_BYTES: usize = 16;
/// The most characters of a token; a longer one is invalid.
const MAX_TOKEN_CHARS: usize = 256;

/// The secret that clients must send to view a recording or give commands. `{:?}` does not show it.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// Creates a token from a chosen secret of letters, digits and `-._~+/=`.
    ///
    /// # Errors
    /// If the text is empty, contains other characters, or is longer than 256 characters.
    pub fn new(text: impl Into<String>) -> Result<Self, TokenError> {
        let text = text.into();
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        let is_token = !text.is_empty() && text.len() <= MAX_TOKEN_CHARS && text.bytes().all(is_allowed);
        if is_token { Ok(Self(text)) } else { Err(TokenError) }
    }

    /// Generates a token from 128 random bits.
    ///
    /// # Errors
    /// If the operating system supplies no randomness.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; TOKEN_RANDOM_BYTES];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Returns the secret text.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Returns true if `text` equals the secret. The comparison takes equally long however many
    /// characters match.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.0.as_bytes().ct_eq(text.as_bytes()).into()
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.matches(&other.0)
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Error for text that is not a valid token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a token is 1 to {MAX_TOKEN_CHARS} letters, digits and characters of -._~+/=")]
pub struct TokenError;

/// The server's token, and whether viewing needs it or only commands do.
#[derive(Debug)]
pub(super) struct Access {
    token: Option<Token>,
    /// True if viewing needs the token, too, and not only commands.
    viewing_needs_token: bool,
}

/// The rights of one request: to view recordings, and to give commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    /// The request may read everything that is served.
    pub(super) can_view: bool,
    /// The request may give commands.
    pub(super) can_command: bool,
    /// The request has a token, and it is wrong.
    pub(super) has_wrong_token: bool,
}

impl Access {
    /// Creates the access rules. A server that only this machine can reach (`is_local`) needs a
    /// token only for commands; any other server needs one for everything.
    pub(super) fn new(token: Option<Token>, is_local: bool, has_commands: bool) -> io::Result<Self> {
        let viewing_needs_token = token.is_some() || !is_local;
        let token = match token {
            None if viewing_needs_token || has_commands => Some(Token::random()?),
            token => token,
        };
        Ok(Self { token, viewing_needs_token })
    }

    /// Returns the server's token; `None` if the server needs no token at all.
    pub(super) fn token(&self) -> Option<&Token> {
        self.token.as_ref()
    }

    /// Returns true if `text` is the server's token; false for other text, or if the server has no
    /// token.
    pub(super) fn is_token(&self, text: &str) -> bool {
        self.token.as_ref().is_some_and(|token| token.matches(text))
    }

    /// Returns what a request may do, by the token in its URL, `Authorization` header or cookies.
    pub(super) fn rights(&self, uri: &Uri, headers: &HeaderMap) -> Rights {
        let sent = || token_in_query(uri).into_iter().chain(bearer_token(headers).map(str::to_owned));
        let has_token =
            sent().any(|token| self.is_token(&token)) || tokens_in_cookies(headers).any(|token| self.is_token(&token));
        let has_wrong_token = self.token.is_some() && !has_token && sent().next().is_some();
        Rights { can_view: !self.viewing_needs_token || has_token, can_command: has_token, has_wrong_token }
    }

    /// Returns where to redirect a browser whose URL has the right token: that URL without the
    /// token, relative to the page. `None` if the URL has no token or a wrong one.
    pub(super) fn address_without_token(&self, uri: &Uri) -> Option<String> {
        token_in_query(uri).is_some_and(|token| self.is_token(&token)).then(|| {
            let is_other = |parameter: &&str| !parameter.is_empty() && parameter.split('=').next() != Some("token");
            // The other parameters keep their encoding, so that the page sees what was sent.
            let others: Vec<_> = uri.query().unwrap_or_default().split('&').filter(is_other).collect();
            if others.is_empty() { "./".to_owned() } else { format!("./?{}", others.join("&")) }
        })
    }

    /// Returns the parameter of the URL's query that has the right token, as it was sent; `None`
    /// without one.
    pub(super) fn token_parameter<'a>(&self, uri: &'a Uri) -> Option<&'a str> {
        let parameter = uri.query()?.split('&').find(|parameter| parameter.starts_with("token="))?;
        token_in_query(uri).is_some_and(|token| self.is_token(&token)).then_some(parameter)
    }

    /// Returns the `Set-Cookie` value that stores the token in a browser; `None` if the server has
    /// no token.
    ///
    /// The cookie has no path, so it applies to the folder in which the browser sees the page, even
    /// behind a proxy that adds a path prefix.
    pub(super) fn cookie(&self, headers: &HeaderMap, is_https: bool) -> Option<String> {
        let cookie = Cookie::build((cookie_name(headers), self.token()?.secret()))
            .http_only(true)
            .same_site(SameSite::Lax)
            .secure(is_https);
        Some(cookie.to_string())
    }
}

/// Returns the token in the URL's query; `None` without the parameter `token`.
///
/// Only percent-decoded: form decoding would turn a `+` of the token into a space.
fn token_in_query(uri: &Uri) -> Option<String> {
    let token = uri.query()?.split('&').find_map(|parameter| parameter.strip_prefix("token="))?;
    Some(percent_decode_str(token).decode_utf8_lossy().into_owned())
}

/// Returns the token in the header `Authorization: Bearer TOKEN`, `None` without this header.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns the name of the cookie that stores the token: `vramscope_PORT`.
///
/// Browsers send a host's cookies to all of its ports. The name has the port by which this server
/// is reached, so that the cookies of several servers do not replace each other.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).and_then(|host| host.parse().ok());
    let port = host.and_then(|host: Authority| host.port_u16());
    port.map_or_else(|| "vramscope".to_owned(), |port| format!("vramscope_{port}"))
}

/// Iterates over the tokens in the request's cookies, which are named [`cookie_name`].
fn tokens_in_cookies(headers: &HeaderMap) -> impl Iterator<Item = String> {
    let name = cookie_name(headers);
    // Split as bytes and parsed one by one: cookies of other servers on this host may be in any
    // encoding.
    let pairs =
        headers.get_all(header::COOKIE).into_iter().flat_map(|line| line.as_bytes().split(|&byte| byte == b';'));
    let cookies = pairs.filter_map(|pair| Cookie::parse(std::str::from_utf8(pair).ok()?).ok());
    cookies.filter(move |cookie| cookie.name() == name).map(|cookie| cookie.value().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "right-Token_1";

    fn access(viewing_needs_token: bool) -> Access {
        Access { token: Token::new(TOKEN).ok(), viewing_needs_token }
    }

    #[track_caller]
    fn check(uri: &str, headers: &[(&'static str, &str)], has_token: bool, has_wrong_token: bool) {
        let mut map = HeaderMap::new();
        map.insert(header::HOST, "localhost:9000".parse().expect("a valid header value"));
        for (name, value) in headers {
            map.append(*name, value.parse().expect("a valid header value"));
        }
        let uri = uri.parse().expect("a valid URI");
        for viewing_needs_token in [false, true] {
            let can_view = has_token || !viewing_needs_token;
            let expected = Rights { can_view, can_command: has_token, has_wrong_token };
            assert_eq!(access(viewing_needs_token).rights(&uri, &map), expected, "{uri} {headers:?}");
        }
    }

    #[test]
    fn token_is_accepted_in_query_authorization_header_and_cookie() {
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
        // The cookie of a server on another port, and one of an earlier server on this port.
        check("/ws", &[("cookie", "vramscope_7791=right-Token_1")], false, false);
        check("/ws", &[("cookie", "vramscope_9000=old")], false, false);
        check("/ws", &[("cookie", "name=J\u{fc}rgen; vramscope_9000=right-Token_1")], true, false);
        check("/ws", &[("cookie", "vramscope_9000=old; vramscope_9000=right-Token_1")], true, false);
    }

    #[test]
    fn redirect_removes_only_the_token() {
        let check = |uri: &str, expected: Option<&str>| {
            let uri = uri.parse().expect("a valid URI");
            assert_eq!(access(true).address_without_token(&uri).as_deref(), expected, "{uri}");
        };
        check("/?token=right-Token_1", Some("./"));
        check("/?trace=files/0/a%2520b.vram&token=right-Token_1", Some("./?trace=files/0/a%2520b.vram"));
        check("/?token=right-Token_1&a=1&&token=other&b", Some("./?a=1&b"));
        check("/?token=other", None);
        check("/", None);
    }

    #[test]
    fn reachable_servers_and_commands_need_a_token() {
        let check = |is_given: bool, is_local: bool, has_commands: bool, has_token: bool, needs_token: bool| {
            let token = is_given.then(|| Token::new(TOKEN).expect("a valid token"));
            let access = Access::new(token, is_local, has_commands).expect("randomness is available");
            assert_eq!((access.token().is_some(), access.viewing_needs_token), (has_token, needs_token));
        };
        check(false, true, false, false, false);
        check(false, true, true, true, false);
        check(false, false, false, true, true);
        check(true, true, false, true, true);
    }

    #[test]
    fn generated_tokens_are_unique_and_hidden_from_debug_output() {
        let tokens: std::collections::HashSet<String> =
            (0..100).map(|_| Token::random().expect("randomness is available").secret().to_owned()).collect();
        assert_eq!(tokens.len(), 100);
        assert!(tokens.iter().all(|token| token.len() == 22 && Token::new(token.as_str()).is_ok()));
        let all: std::collections::HashSet<char> = tokens.iter().flat_map(|token| token.chars()).collect();
        assert_eq!(all.len(), 64, "every base64 character occurs");
        let options = super::super::options::ServerOptions { token: Token::new(TOKEN).ok(), ..Default::default() };
        assert!(!format!("{options:?} {:?}", access(true)).contains(TOKEN));
        for wrong in ["", "a b", "a\"b", "\u{e4}", "a;b", "a\r\nb", &"a".repeat(257)] {
            assert!(Token::new(wrong).is_err(), "{wrong:?}");
        }
    }
}
