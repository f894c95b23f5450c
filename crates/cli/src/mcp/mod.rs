//! The analyses as tools of the Model Context Protocol, over standard input and output.
//!
//! [`server`] implements the protocol and runs one analysis at a time, [`tools`] has the tools with
//! their schemas, [`sources`] checks which files and addresses a client may read, and [`bounds`]
//! keeps results small.

use std::io::{self, IsTerminal};

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;

use crate::error::{CommandError, Result};
use crate::terminal;

mod bounds;
mod server;
mod sources;
#[cfg(test)]
mod tests;
mod tools;

use server::AnalysisServer;
pub(crate) use sources::Sources;

/// Serves the tools on standard input and output until the input ends.
pub(crate) fn serve(sources: Sources) -> Result {
    if io::stdin().is_terminal() {
        terminal::message("waiting for a client: an assistant starts this command, see vramscope mcp --help");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| CommandError::new(format_args!("cannot start: {error}")))?;
    let result = runtime.block_on(async {
        match AnalysisServer::new(sources).serve(rmcp::transport::stdio()).await {
            Ok(running) => running.waiting().await.map(drop).map_err(CommandError::new),
            // The client disconnected before the protocol's initialization.
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(CommandError::new(format_args!("cannot start: {error}"))),
        }
    });
    // Does not wait for an analysis that still runs, because its client has disconnected.
    runtime.shutdown_background();
    result
}
