//! `vramscope fleet`: keys of the users of a run, and its streams at the broker.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use vramscope_collector::parse_time;
use vramscope_fleet::{
    FleetAddress, MAX_RANKS, Role, StreamLimits, UserKey, broker_authorization, create_streams, delete_streams,
    subjects,
};
use vramscope_trace::ByteSize;

use crate::error::{CommandError, Result};
use crate::terminal;

/// Text after the options in `vramscope fleet --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope fleet keys run-1 -o keys
  vramscope fleet create 'nats://broker/run-1?nkey=keys/admin.nk'
  vramscope serve --from 'nats://broker/run-1?nkey=keys/viewer.nk'
  vramscope fleet delete 'nats://broker/run-1?nkey=keys/admin.nk'

keys writes one key file for each role, and broker.conf, which allows each what its role needs:
include it in the configuration of nats-server. Keep the key files secret.";

/// The name of the broker's configuration in the folder of keys.
const CONFIG_FILE: &str = "broker.conf";

/// Arguments of `vramscope fleet`.
#[derive(Args, Debug)]
pub(crate) struct FleetArguments {
    #[command(subcommand)]
    action: FleetAction,
}

// What `vramscope fleet` does. The doc comments are the help texts.
#[derive(Subcommand, Debug)]
enum FleetAction {
    /// Make keys for the users of a run, and the broker's configuration for them
    Keys(KeysArguments),
    /// Create the streams of a run at the broker, or change their limits
    Create(CreateArguments),
    /// Delete the streams of a run with all that is stored in them
    Delete(DeleteArguments),
}

/// Arguments of `vramscope fleet keys`.
#[derive(Args, Debug)]
struct KeysArguments {
    /// Name of the run
    run: String,
    /// Folder for the keys, which must not exist
    #[arg(short, long, value_name = "FOLDER")]
    output: PathBuf,
    /// Make a key for each of this many ranks, instead of one for all programs
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_RANKS)))]
    ranks: Option<u32>,
}

/// Arguments of `vramscope fleet create`.
#[derive(Args, Debug)]
struct CreateArguments {
    /// Address of the run, with the credentials of an admin: nats://HOST:PORT/RUN?nkey=FILE
    #[arg(value_name = "URL")]
    address: String,
    /// Most bytes of events that the broker stores [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    event_bytes: Option<ByteSize>,
    /// How long the broker stores events [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    event_age: Option<Duration>,
    /// Most bytes of summaries that the broker stores [default: 512MiB]
    #[arg(long, value_name = "SIZE")]
    summary_bytes: Option<ByteSize>,
    /// How long the broker stores summaries [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    summary_age: Option<Duration>,
}

/// Arguments of `vramscope fleet delete`.
#[derive(Args, Debug)]
struct DeleteArguments {
    /// Address of the run, with the credentials of an admin: nats://HOST:PORT/RUN?nkey=FILE
    #[arg(value_name = "URL")]
    address: String,
}

/// Runs `vramscope fleet`.
pub(crate) fn run(arguments: &FleetArguments) -> Result {
    match &arguments.action {
        FleetAction::Keys(arguments) => make_keys(arguments),
        FleetAction::Create(arguments) => {
            let address = parse(&arguments.address)?;
            create_streams(&address, &arguments.limits()).map_err(CommandError::new)?;
            terminal::message(format_args!("created the streams of {address}"));
            Ok(())
        }
        FleetAction::Delete(arguments) => {
            let address = parse(&arguments.address)?;
            delete_streams(&address).map_err(CommandError::new)?;
            terminal::message(format_args!("deleted the streams of {address}"));
            Ok(())
        }
    }
}

/// Parses the address of a run. Clap does not parse it, because clap's errors would show the
/// secrets in the value.
fn parse(address: &str) -> Result<FleetAddress> {
    FleetAddress::parse(address).map_err(CommandError::new)
}

impl CreateArguments {
    /// Returns the limits of the streams.
    fn limits(&self) -> StreamLimits {
        let default = StreamLimits::default();
        let bytes = |size: Option<ByteSize>, default: u64| size.map_or(default, |size| size.0);
        StreamLimits {
            event_bytes: bytes(self.event_bytes, default.event_bytes),
            event_age: self.event_age.unwrap_or(default.event_age),
            summary_bytes: bytes(self.summary_bytes, default.summary_bytes),
            summary_age: self.summary_age.unwrap_or(default.summary_age),
        }
    }
}

/// Writes the keys and the broker's configuration.
fn make_keys(arguments: &KeysArguments) -> Result {
    let KeysArguments { run, output, ranks } = arguments;
    if !subjects::is_run_name(run) {
        return Err(CommandError::new(format_args!(
            "{run:?} cannot name a run: use 1 to {} letters, digits, - and _",
            subjects::MAX_RUN_CHARS
        )));
    }
    let programs = match ranks {
        Some(ranks) => (0..*ranks).map(|rank| Role::Program(Some(rank))).collect(),
        None => vec![Role::Program(None)],
    };
    let roles = programs.into_iter().chain([Role::Viewer, Role::Admin]);
    let keys: Vec<UserKey> = roles.map(UserKey::random).collect();
    create_private_folder(output)?;
    for key in &keys {
        write_private(&output.join(format!("{}.nk", key.role())), &format!("{}\n", key.seed()))?;
    }
    let config = output.join(CONFIG_FILE);
    write_private(&config, &broker_authorization(run, &keys))?;
    terminal::message(format_args!(
        "wrote {} keys to {}; include {} in the broker's configuration",
        keys.len(),
        output.display(),
        config.display()
    ));
    Ok(())
}

/// Creates a folder that only its owner may read. Fails if it exists, so that no key is replaced.
fn create_private_folder(path: &Path) -> Result {
    #[cfg(unix)]
    let created = std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), 0o700).create(path);
    #[cfg(not(unix))]
    let created = fs::create_dir(path);
    created.map_err(|error| CommandError::file(path, error))
}

/// Writes a new file that only its owner may read.
fn write_private(path: &Path, content: &str) -> Result {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options.open(path).and_then(|mut file| file.write_all(content.as_bytes()));
    written.map_err(|error| CommandError::file(path, error))
}
