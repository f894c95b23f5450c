//! A page that shows the processes that push their recordings to it or to a broker, for `serve`,
//! `run` and `attach`.

use std::path::{Path, PathBuf};
#[cfg(feature = "fleet")]
use std::sync::Arc;

use vramscope_collector::{Aggregator, Controls, FileError, Hub, Outputs, ServedContent, Server};
#[cfg(feature = "fleet")]
use vramscope_fleet::{FleetAddress, Follower, FollowerOptions};
use vramscope_trace::{ByteSize, Count};

use crate::error::{CommandError, Result};
#[cfg(feature = "fleet")]
use crate::fleet_feed::FollowedRun;
use crate::retention::RetentionArguments;
use crate::server::{AnnounceOn, ServerArguments};
use crate::terminal;

/// The source of the recordings of a [`MergeServer`].
#[derive(Clone, Debug)]
pub(crate) enum MergeSource {
    /// The processes push to the server.
    Push,
    /// The processes of this run push to a broker, from which the server reads.
    #[cfg(feature = "fleet")]
    Run(FleetAddress),
}

/// The behavior of a command whose recording file cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnUnwritable {
    /// Ends with an error.
    Fail,
    /// Prints a message and continues without a file.
    Continue,
}

/// A server that merges the recordings of several processes, and serves the page.
pub(crate) struct MergeServer {
    /// Reads from the broker; dropped before the aggregator stops.
    #[cfg(feature = "fleet")]
    follower: Option<Arc<Follower>>,
    aggregator: Aggregator,
    #[cfg(feature = "otlp")]
    content: ServedContent,
    server: Server,
    record: Option<PathBuf>,
}

impl MergeServer {
    /// Starts the server, and writes the merged recording to the file `record`, if any.
    pub(crate) fn start(
        source: MergeSource,
        arguments: &ServerArguments,
        record: Option<&Path>,
        retention: &RetentionArguments,
        on_unwritable: OnUnwritable,
        output: AnnounceOn,
    ) -> Result<Self> {
        retention.require_file(record)?;
        let (hub, aggregator) = (Hub::default(), Aggregator::new());
        // Starts everything that can fail before it replaces an earlier recording.
        let controls = Controls::default();
        aggregator.offer_recording(&controls, &hub, PathBuf::new());
        #[cfg(feature = "fleet")]
        let follower = match &source {
            MergeSource::Push => None,
            MergeSource::Run(address) => {
                let options = FollowerOptions::default();
                let follower = Follower::connect(address, aggregator.clone(), options).map_err(CommandError::new)?;
                Some(Arc::new(follower))
            }
        };
        let content = ServedContent {
            aggregator: Some(aggregator.clone()),
            accepts_push: matches!(source, MergeSource::Push),
            controls: Some(controls),
            #[cfg(feature = "fleet")]
            fleet: follower.as_ref().map(|follower| FollowedRun::feed(follower)),
            ..ServedContent::live(hub.clone())
        };
        #[cfg(feature = "otlp")]
        let server = arguments.start(content.clone())?;
        #[cfg(not(feature = "otlp"))]
        let server = arguments.start(content)?;
        let mut outputs = Outputs { hub: Some(hub), ..Outputs::default() };
        outputs.file = match record {
            Some(path) if on_unwritable == OnUnwritable::Continue => retention.create_if_writable(path)?,
            Some(path) => Some(retention.create(path)?),
            None => None,
        };
        let record = record.filter(|_| outputs.file.is_some());
        if record.is_some() {
            outputs.on_file_error = Some(Box::new(|error| {
                terminal::message(format_args!("{error}; the file ends here, the live view continues"));
            }));
        }
        aggregator.begin(outputs).map_err(|error| CommandError::new(format_args!("cannot start merging: {error}")))?;
        #[cfg(feature = "fleet")]
        if let Some(follower) = &follower {
            follower.follow();
            arguments.announce_with_fleet(&server, output)?;
        } else {
            arguments.announce(&server, output)?;
        }
        #[cfg(not(feature = "fleet"))]
        arguments.announce(&server, output)?;
        Ok(Self {
            #[cfg(feature = "fleet")]
            follower,
            aggregator,
            #[cfg(feature = "otlp")]
            content,
            server,
            record: record.map(Path::to_owned),
        })
    }

    /// Returns the address to which processes push, with the server's token.
    pub(crate) fn push_url(&self) -> String {
        self.server.url().replacen("http", "ws", 1)
    }

    /// Returns a function that reads the server's metrics.
    #[cfg(feature = "otlp")]
    pub(crate) fn metrics_reader(&self) -> impl Fn() -> Vec<vramscope_collector::MetricFamily> + use<> {
        let content = self.content.clone();
        move || content.metrics()
    }

    /// Returns true if other machines cannot reach the server.
    pub(crate) fn is_loopback(&self) -> bool {
        self.server.address().ip().is_loopback()
    }

    /// Ends the recording: viewers receive the rest and its end before the server stops. Fails if
    /// the file is incomplete.
    pub(crate) fn stop(self) -> Result {
        #[cfg(feature = "fleet")]
        drop(self.follower);
        let summary = self.aggregator.stop().unwrap_or_default();
        drop(self.server);
        match (&self.record, summary.file_error) {
            (_, Some(FileError { name, error })) => {
                Err(CommandError::new(format_args!("{name}: the recording is incomplete: {error}")))
            }
            (Some(path), None) => {
                let events = Count(summary.events).of("event", "events");
                terminal::message(format_args!("{}: {events}, {}", path.display(), ByteSize(summary.bytes)));
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }
}
