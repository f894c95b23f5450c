//! A cluster of NATS servers for tests, whose nodes they can kill, wipe and fill up.

use std::collections::BTreeSet;
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
const DISK_MIB: u32 = 384;

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
            let config = format!(
                "server_name: node{number}\nhttp: 127.0.0.1:{http_port}\n\
                 cluster {{ name: test, listen: 127.0.0.1:{port}, routes: [{}] }}\n",
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

    /// Waits until every node has what the others store.
    fn wait_healthy(&self) {
        let deadline = Instant::now() + HEALTH_TIMEOUT;
        while !self.is_healthy() {
            let logs: Vec<String> = self.nodes.iter().map(|node| node.broker.log()).collect();
            assert!(Instant::now() < deadline, "a node does not recover: {}", logs.join("\n"));
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns true if every node is up, and every stream is complete on all nodes: a node without
    /// its store is healthy before it knows which streams it should have.
    fn is_healthy(&self) -> bool {
        let get = |node: &Node, path: &str| {
            let page = format!("http://127.0.0.1:{}/", node.http_port);
            http::request(&page, "GET", path, "").ok().filter(|response| response.status == 200)
        };
        let mut streams_of_nodes = Vec::new();
        let mut complete = BTreeSet::new();
        for node in &self.nodes {
            if get(node, "/healthz").is_none() {
                return false;
            }
            let Some(response) = get(node, "/jsz?accounts=1&streams=1") else { return false };
            let Ok(details) = serde_json::from_slice::<Value>(&response.body) else { return false };
            let accounts = details["account_details"].as_array().cloned().unwrap_or_default();
            let streams = accounts.iter().filter_map(|account| account["stream_detail"].as_array()).flatten();
            let name = |stream: &Value| stream["name"].as_str().unwrap_or_default().to_owned();
            streams_of_nodes.push(streams.clone().map(name).collect::<BTreeSet<_>>());
            // Only the leader of a stream knows how far the other nodes are.
            let is_current = |replica: &Value| replica["current"] == true && replica["offline"] != true;
            let are_current = |stream: &&Value| {
                stream["cluster"]["replicas"]
                    .as_array()
                    .is_some_and(|replicas| replicas.len() + 1 == self.nodes.len() && replicas.iter().all(is_current))
            };
            complete.extend(streams.filter(are_current).map(name));
        }
        streams_of_nodes.iter().all(|streams| *streams == complete)
    }

    /// Returns the memory of the node that uses most, in bytes.
    #[must_use]
    pub fn largest_memory(&self) -> u64 {
        let usages = self.nodes.iter().filter_map(|node| node.broker.usage());
        usages.map(|ProcessUsage { resident_bytes, .. }| resident_bytes).max().unwrap_or(0)
    }
}

impl Drop for BrokerCluster {
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(|node| node.broker.kill());
    }
}
