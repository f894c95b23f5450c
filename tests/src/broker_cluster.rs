//! A cluster of NATS servers for tests, whose nodes they can kill, wipe and fill up.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::{Broker, free_port};
use crate::http;
use crate::process::ProcessUsage;

/// Longest time until a node has joined and has what the others store, on a slow machine.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(120);
/// Size of a node's disk if it can be filled up, in MiB.
const DISK_MIB: u32 = 768;

/// Nodes of one cluster. Dropping it ends them and deletes their files.
#[derive(Debug)]
pub struct BrokerCluster {
    nodes: Vec<Node>,
}

/// A node, its port for HTTP, and its disk.
#[derive(Debug)]
struct Node {
    broker: Broker,
    http_port: u16,
    disk: Option<SmallDisk>,
}

/// A file system in memory. Dropping it removes it.
#[derive(Debug)]
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a file system at a folder; `None` without the right to.
    fn mount(folder: PathBuf) -> Option<Self> {
        fs::create_dir_all(&folder).ok()?;
        let size = format!("size={DISK_MIB}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&folder).output().ok()?;
        mounted.status.success().then_some(Self(folder))
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Writes until nothing more fits.
    fn fill(&self) -> io::Result<()> {
        let mut file = File::create(self.ballast())?;
        let piece = vec![0; 1 << 20];
        while file.write_all(&piece).is_ok() {}
        Ok(())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the server's files may still be open for a moment.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

impl BrokerCluster {
    /// Starts `size` nodes with empty stores, and waits until they work together.
    ///
    /// # Panics
    /// Panics if a node does not start.
    #[must_use]
    pub fn start(size: usize) -> Self {
        let routes: Vec<u16> = (0..size).map(|_| free_port()).collect();
        let urls: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let nodes = routes.iter().enumerate().map(|(number, port)| {
            let http_port = free_port();
            // Clients that learn of other nodes would reconnect to them without the tests' proxies.
            let config = format!(
                "server_name: node{number}\nhttp: 127.0.0.1:{http_port}\n\
                 cluster {{ name: test, listen: 127.0.0.1:{port}, no_advertise: true, routes: [{}] }}\n",
                urls.join(", ")
            );
            let mut broker = Broker::stopped(&config);
            let disk = SmallDisk::mount(broker.store());
            broker.run();
            Node { broker, http_port, disk }
        });
        let cluster = Self { nodes: nodes.collect() };
        cluster.wait_healthy();
        cluster
    }

    /// Returns the address of a run at these nodes.
    #[must_use]
    pub fn address(&self, run: &str) -> String {
        let sockets: Vec<String> = self.nodes.iter().map(|node| node.broker.socket().to_string()).collect();
        format!("nats://{}/{run}", sockets.join(","))
    }

    /// Returns a node.
    ///
    /// # Panics
    /// Panics if there is no such node.
    #[must_use]
    pub fn node(&self, number: usize) -> &Broker {
        &self.nodes[number].broker
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// Kills a node; its store stays.
    pub fn kill(&mut self, number: usize) {
        self.nodes[number].broker.kill();
    }

    /// Kills a node and deletes its store.
    pub fn lose(&mut self, number: usize) {
        self.nodes[number].broker.lose_store();
    }

    /// Fills the disk of a node up. Returns false if the test may not have disks of limited size.
    pub fn fill_disk(&self, number: usize) -> bool {
        self.nodes[number].disk.as_ref().is_some_and(|disk| disk.fill().is_ok())
    }

    /// Starts a node again, with what its store has, and waits until it has what the others store.
    /// A full disk has room again.
    pub fn restart(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.broker.kill();
        if let Some(disk) = &node.disk {
            // It may not exist.
            let _ = fs::remove_file(disk.ballast());
        }
        node.broker.run();
        self.wait_healthy();
    }

    /// Kills all nodes at once, and starts them again after `pause`, with their stores.
    pub fn restart_all(&mut self, pause: Duration) {
        self.nodes.iter_mut().for_each(|node| node.broker.kill());
        thread::sleep(pause);
        self.nodes.iter_mut().for_each(|node| node.broker.run());
        self.wait_healthy();
    }

    /// Waits until every node has what the others store.
    fn wait_healthy(&self) {
        let deadline = Instant::now() + HEALTH_TIMEOUT;
        // What every node must have: that a leader counts a node as current does not say that the
        // node has stored everything.
        let mut wanted: Option<BTreeMap<String, u64>> = None;
        loop {
            let states = self.stream_states();
            match (&wanted, states) {
                (Some(wanted), Some(states)) if has_all(&states, wanted) => return,
                (None, Some(states)) => wanted = Some(last_messages(&states)),
                _ => {}
            }
            let logs = || self.nodes.iter().map(|node| node.broker.log()).collect::<Vec<_>>().join("\n");
            assert!(Instant::now() < deadline, "a node does not recover: {}", logs());
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns what each node has of each stream. `None` unless every node is up, and every stream
    /// is current on all nodes: a node without its store is healthy before it knows which streams
    /// it should have.
    fn stream_states(&self) -> Option<Vec<BTreeMap<String, StreamState>>> {
        let get = |node: &Node, path: &str| {
            let page = format!("http://127.0.0.1:{}/", node.http_port);
            http::request(&page, "GET", path, "").ok().filter(|response| response.status == 200)
        };
        let mut states_of_nodes = Vec::new();
        let mut current = BTreeSet::new();
        for node in &self.nodes {
            get(node, "/healthz")?;
            let details: Value = serde_json::from_slice(&get(node, "/jsz?accounts=1&streams=1")?.body).ok()?;
            let accounts = details["account_details"].as_array().cloned().unwrap_or_default();
            let streams = accounts.iter().filter_map(|account| account["stream_detail"].as_array()).flatten();
            let name = |stream: &Value| stream["name"].as_str().unwrap_or_default().to_owned();
            states_of_nodes.push(streams.clone().map(|stream| (name(stream), StreamState::of(stream))).collect());
            // Only the leader of a stream knows how far the other nodes are.
            let is_current = |replica: &Value| replica["current"] == true && replica["offline"] != true;
            let are_current = |stream: &&Value| {
                stream["cluster"]["replicas"]
                    .as_array()
                    .is_some_and(|replicas| replicas.len() + 1 == self.nodes.len() && replicas.iter().all(is_current))
            };
            current.extend(streams.filter(are_current).map(name));
        }
        let has_current = |states: &BTreeMap<String, StreamState>| states.keys().eq(current.iter());
        states_of_nodes.iter().all(has_current).then_some(states_of_nodes)
    }

    /// Returns the memory of the node that uses most, in bytes.
    #[must_use]
    pub fn largest_memory(&self) -> u64 {
        let usages = self.nodes.iter().filter_map(|node| node.broker.usage());
        usages.map(|ProcessUsage { resident_bytes, .. }| resident_bytes).max().unwrap_or(0)
    }
}

/// What a node has of a stream.
#[derive(Clone, Copy, Debug)]
struct StreamState {
    first: u64,
    last: u64,
    messages: u64,
    /// True if the broker deletes messages within the stream: older descriptions of a process.
    has_deleted: bool,
}

impl StreamState {
    /// Reads the state from the broker's description of a stream.
    fn of(stream: &Value) -> Self {
        let number = |name: &str| stream["state"][name].as_u64().unwrap_or(0);
        let (first, last, messages) = (number("first_seq"), number("last_seq"), number("messages"));
        Self {
            first,
            last,
            messages,
            has_deleted: stream["name"].as_str().is_some_and(|name| name.ends_with("processes")),
        }
    }

    /// Returns true if it has every message up to `wanted` that the broker has not dropped.
    fn has_all(self, wanted: u64) -> bool {
        let is_whole = self.messages == 0 || self.messages == self.last - self.first + 1;
        self.last >= wanted && (self.has_deleted || is_whole)
    }
}

/// Returns the number of the last message of each stream on any node.
fn last_messages(states: &[BTreeMap<String, StreamState>]) -> BTreeMap<String, u64> {
    let mut last = BTreeMap::new();
    for (name, state) in states.iter().flatten() {
        let most: &mut u64 = last.entry(name.clone()).or_default();
        *most = state.last.max(*most);
    }
    last
}

/// Returns true if each node has every message up to those that are `wanted`.
fn has_all(states: &[BTreeMap<String, StreamState>], wanted: &BTreeMap<String, u64>) -> bool {
    let has_all = |states: &BTreeMap<String, StreamState>| {
        wanted.iter().all(|(name, last)| states.get(name).is_some_and(|state| state.has_all(*last)))
    };
    states.iter().all(has_all)
}

impl Drop for BrokerCluster {
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.broker.kill());
    }
}
