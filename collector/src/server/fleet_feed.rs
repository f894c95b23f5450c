//! The interface through which a server shows the ranks of a training run. The server passes
//! encoded views on to clients without reading them.

use std::fmt;

use super::metric_family::MetricFamily;

/// The ranks of a training run and their memory, as a source of views for the fleet page. Its
/// methods must not block.
pub trait FleetFeed: fmt::Debug + Send + Sync {
    /// Returns the name of the run.
    fn run(&self) -> String;

    /// Creates an encoder of views for a client that has connected.
    fn client(&self) -> Box<dyn FleetClient>;

    /// Returns the newest view as JSON.
    fn json(&self) -> String;

    /// Returns the metrics of all ranks, for `/metrics`.
    fn metrics(&self) -> Vec<MetricFamily>;

    /// Starts to read the events of the process with this identity.
    ///
    /// # Errors
    /// Returns the reason, for the user.
    fn open(&self, identity: &str) -> Result<(), String>;

    /// Stops reading the events of the process with this identity, if this server reads them.
    ///
    /// # Errors
    /// Returns the reason, for the user.
    fn close(&self, identity: &str) -> Result<(), String>;
}

/// An encoder of views for one client of the fleet page.
pub trait FleetClient: Send {
    /// Returns the binary message that brings the client to the newest view; `None` if the client
    /// already has it.
    fn update(&mut self) -> Option<Vec<u8>>;
}
