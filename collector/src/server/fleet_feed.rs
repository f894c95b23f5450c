//! What a server needs to show the ranks of a training run. The server only passes on the encoded
//! views: it knows nothing of their content.

use std::fmt;

use super::metric_family::MetricFamily;

/// The ranks of a training run, as a server shows them. Its functions must not block.
pub trait FleetFeed: fmt::Debug + Send + Sync {
    /// Returns the name of the run.
    fn run(&self) -> String;

    /// Returns what encodes the views for one more client.
    fn client(&self) -> Box<dyn FleetClient>;

    /// Returns the newest view as JSON.
    fn json(&self) -> String;

    /// Returns the figures of all ranks, for `/metrics`.
    fn metrics(&self) -> Vec<MetricFamily>;

    /// Starts to read the events of the process with this identity.
    ///
    /// # Errors
    /// Returns the reason, for the user.
    fn open(&self, identity: &str) -> Result<(), String>;

    /// Stops reading the events of the process with this identity, if this server asks for them.
    ///
    /// # Errors
    /// Returns the reason, for the user.
    fn close(&self, identity: &str) -> Result<(), String>;
}

/// Encodes the views for one client.
pub trait FleetClient: Send {
    /// Returns the message that brings the client up to date; `None` if it is.
    fn update(&mut self) -> Option<Vec<u8>>;
}
