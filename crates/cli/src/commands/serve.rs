//! `vramscope serve`: collects the recordings of several processes, or reads a run's recordings
//! from a broker, and shows them together.

use std::path::PathBuf;

use clap::Args;
use vramscope_collector::PUSH_VARIABLE;

#[cfg(feature = "fleet")]
use crate::archive;
#[cfg(feature = "fleet")]
use crate::error::CommandError;
use crate::error::Result;
use crate::merge_server::{MergeServer, MergeSource, OnUnwritable};
#[cfg(feature = "otlp")]
use crate::otlp::{OtlpExport, OtlpExporter};
use crate::retention::RetentionArguments;
use crate::server::{AnnounceOn, ServerArguments};
use crate::signals::Interrupts;
use crate::terminal;

/// Text after the options in `vramscope serve --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope serve --record all.vram
  VRAMSCOPE_PUSH=ws://127.0.0.1:7791/ vramscope demo --listen 127.0.0.1:0
  vramscope serve --from nats://broker:4222/run
  vramscope serve --from nats://broker:4222/run --archive s3://bucket/run

Every process with VRAMSCOPE_PUSH in its environment pushes its recording to this server. With
--from, the processes push to a NATS broker, and this server reads them from there.";

/// Arguments of `vramscope serve`: the file to record to, and the server.
#[derive(Args, Debug)]
pub(crate) struct ServeArguments {
    /// Read the processes of a run from a NATS broker: nats://HOST:PORT/RUN
    #[cfg(feature = "fleet")]
    #[arg(long, value_name = "URL")]
    from: Option<String>,
    /// Also store the whole history of the run: s3://BUCKET/PREFIX, gs://, az:// or file:///FOLDER
    #[cfg(feature = "fleet")]
    #[arg(long, value_name = "URL", requires = "from")]
    archive: Option<String>,
    /// Export metrics to an OpenTelemetry collector: http://HOST:4318
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
    /// Also write the merged recording to this file
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    #[command(flatten)]
    retention: RetentionArguments,
    #[command(flatten)]
    server: ServerArguments,
}

/// Merges the recordings that processes push, and serves the page, until the command is
/// interrupted.
pub(crate) fn run(arguments: &ServeArguments) -> Result {
    let ServeArguments { record, retention, server, .. } = arguments;
    let interrupts = Interrupts::listen()?;
    #[cfg(feature = "otlp")]
    let exporter = arguments.otlp.as_deref().map(OtlpExporter::new).transpose()?;
    #[cfg(feature = "fleet")]
    if let Some(address) = &arguments.from {
        // Clap does not parse it: its errors would show the secrets in the value.
        let address = &vramscope_fleet::FleetAddress::parse(address).map_err(CommandError::new)?;
        let archiver = arguments.archive.as_deref().map(|archive| archive::start(archive, address)).transpose()?;
        let source = MergeSource::Run(address.clone());
        let merge =
            MergeServer::start(source, server, record.as_deref(), retention, OnUnwritable::Fail, AnnounceOn::Stdout)?;
        terminal::message(format_args!("set {PUSH_VARIABLE}={address} for each process of the run"));
        #[cfg(feature = "otlp")]
        let export = exporter.map(|exporter| OtlpExport::start(exporter, merge.metrics_reader())).transpose()?;
        interrupts.wait();
        #[cfg(feature = "otlp")]
        drop(export);
        let stopped = merge.stop();
        return archiver.map_or(Ok(()), archive::finish).and(stopped);
    }
    let merge = MergeServer::start(
        MergeSource::Push,
        server,
        record.as_deref(),
        retention,
        OnUnwritable::Fail,
        AnnounceOn::Stdout,
    )?;
    let url = merge.push_url();
    // If a random token only protects the page's commands, the push address omits it: the
    // processes may outlive this server, and the next server has another token.
    let is_open = !server.has_token()? && merge.is_loopback();
    let address = url.split('?').next().unwrap_or_default();
    // The token is printed once, in the address of the page.
    let token = if is_open { "" } else { "?token=… (the token above)" };
    terminal::message(format_args!("set {PUSH_VARIABLE}={address}{token} for each process to show here"));
    #[cfg(feature = "otlp")]
    let export = exporter.map(|exporter| OtlpExport::start(exporter, merge.metrics_reader())).transpose()?;
    interrupts.wait();
    #[cfg(feature = "otlp")]
    drop(export);
    merge.stop()
}
