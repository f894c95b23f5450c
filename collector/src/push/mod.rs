//! Pushes a program's recording to a server that several processes share: a `vramscope serve`, or
//! another kind of server whose scheme was [registered](register_push_scheme).
//!
//! `pusher` is the thread that pushes, `transport` the interface to a server's connection, and
//! `websocket` its implementation for `vramscope serve`. `address` chooses the implementation by an
//! address's scheme.

use std::env;
use std::ffi::OsString;

use crate::socket::AddressError;

mod address;
mod pusher;
#[cfg(test)]
mod tests;
mod transport;
mod websocket;

pub use address::{ParsePushServer, PushAddress, PushServer, register_push_scheme};
pub use pusher::Push;
pub use transport::{Demand, PushMessage, Transport};

/// The environment variable with the address of the server to push to.
pub const PUSH_VARIABLE: &str = "VRAMSCOPE_PUSH";

/// A value of [`PUSH_VARIABLE`] that is not an address.
///
/// The message does not repeat the value, which may contain a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushVariableError {
    /// The value is not Unicode text.
    #[error("{PUSH_VARIABLE} is not Unicode text")]
    NotUnicode,
    /// The value is not the address of a server.
    #[error("{PUSH_VARIABLE}: {0}")]
    Address(#[from] AddressError),
}

/// Returns the address in the environment variable [`PUSH_VARIABLE`], such as
/// `ws://127.0.0.1:7791`, or `None` if it is unset or empty.
///
/// # Errors
/// If the value is not an address with a known scheme.
pub fn push_from_env() -> Result<Option<PushAddress>, PushVariableError> {
    parse_variable(env::var_os(PUSH_VARIABLE))
}

/// Parses the value of [`PUSH_VARIABLE`]; `None` if it is unset or empty.
fn parse_variable(value: Option<OsString>) -> Result<Option<PushAddress>, PushVariableError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let url = value.into_string().map_err(|_| PushVariableError::NotUnicode)?;
    Ok(Some(PushAddress::parse(&url)?))
}
