//! Connecting to a broker.

use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::{self, context::ContextBuilder};
use async_nats::{Client, ConnectOptions, ServerAddr};
use nkeys::KeyPair;

use crate::address::{Credentials, FleetAddress};
use crate::{roles, subjects};

/// Maximum time for connecting to one server; then the next server is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The most time that the broker may take to acknowledge a message or answer a request.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of pings. After two unanswered pings the connection counts as lost.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The longest delay between two attempts to reconnect.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(2);

/// An error of the connection to a broker. The text has no secrets.
#[derive(Debug, thiserror::Error)]
#[error("{broker}: {reason}")]
pub struct FleetError {
    /// The broker's address, without secrets.
    broker: String,
    reason: String,
}

impl FleetError {
    /// Creates the error that an operation at this address failed.
    pub(crate) fn new(address: &FleetAddress, reason: impl std::fmt::Display) -> Self {
        Self { broker: address.to_string(), reason: reason.to_string() }
    }

    /// Returns the error's text without the broker's address.
    pub(crate) fn into_reason(self) -> String {
        self.reason
    }
}

/// A connection to a broker, which reconnects by itself, and its JetStream interface.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) jetstream: jetstream::Context,
}

impl Connection {
    /// Connects to one of the address's servers. `name` is shown by the broker's monitoring.
    pub(crate) async fn open(address: &FleetAddress, name: &str) -> Result<Self, FleetError> {
        let fail = |reason: String| FleetError::new(address, reason);
        let options = options(address).await.map_err(fail)?;
        let servers: Result<Vec<ServerAddr>, _> =
            address.servers.iter().map(|server| format!("nats://{server}").parse()).collect();
        let servers = servers.map_err(|error| fail(error.to_string()))?;
        let client = options.name(name).connect(servers).await.map_err(|error| fail(describe(&error)))?;
        // The client's own limit on messages in flight is not needed: the transport has a lower
        // one.
        let jetstream = ContextBuilder::new().timeout(REPLY_TIMEOUT).build(client.clone());
        Ok(Self { client, jetstream })
    }

    /// Waits until the connection is established, at most for `timeout`. Returns false if it is
    /// not.
    pub(crate) async fn wait_connected(&self, timeout: Duration) -> bool {
        let is_connected = async {
            while self.client.connection_state() != State::Connected {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(timeout, is_connected).await.is_ok()
    }
}

/// Returns the text of an error and of its causes, without repetitions.
pub(crate) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(cause_text.trim_start_matches("nats: ")) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Returns the options of a connection: credentials, TLS, timeouts.
async fn options(address: &FleetAddress) -> Result<ConnectOptions, String> {
    let mut options = ConnectOptions::new()
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(REPLY_TIMEOUT))
        .ping_interval(PING_INTERVAL)
        .reconnect_delay_callback(|attempts| {
            let delay = Duration::from_millis(100).saturating_mul(1 << attempts.min(5));
            delay.min(MAX_RECONNECT_DELAY)
        })
        .require_tls(address.is_tls);
    options = match &address.credentials {
        Credentials::Anonymous => options,
        Credentials::Token(token) => options.token(token.clone()),
        Credentials::User(name, password) => {
            let options = options.user_and_password(name.clone(), password.clone());
            // A user's name that cannot be part of a subject gets the default prefix for replies,
            // which all users share.
            if subjects::is_run_name(name) { options.custom_inbox_prefix(roles::inbox(name)) } else { options }
        }
        Credentials::UserFile(path) => options
            .credentials_file(path)
            .await
            .map_err(|error| format!("cannot read the credentials file {}: {error}", path.display()))?,
        Credentials::NkeyFile(path) => {
            let seed = std::fs::read_to_string(path)
                .map_err(|error| format!("cannot read the NKey file {}: {error}", path.display()))?;
            let user = KeyPair::from_seed(seed.trim())
                .map_err(|error| format!("the NKey file {} has no seed: {error}", path.display()))?;
            options.nkey(seed.trim().to_owned()).custom_inbox_prefix(roles::inbox(&user.public_key()))
        }
    };
    if let Some(ca) = &address.tls.ca {
        options = options.add_root_certificates(ca.clone());
    }
    if let Some((certificate, key)) = &address.tls.client {
        options = options.add_client_certificate(certificate.clone(), key.clone());
    }
    Ok(options)
}
