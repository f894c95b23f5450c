//! The faulty network between one process and a cluster of brokers.

use crate::broker_cluster::BrokerCluster;
use crate::proxy::{Fault, Proxy};

/// A proxy for each node of a cluster.
pub(super) struct ClusterProxies(Vec<Proxy>);

impl ClusterProxies {
    /// Starts the proxies.
    pub(super) fn start(cluster: &BrokerCluster) -> Self {
        Self((0..cluster.size()).map(|node| Proxy::start(cluster.node(node).socket())).collect())
    }

    /// Returns the address of a run through the proxies. `path` is the run with its options.
    pub(super) fn address(&self, path: &str) -> String {
        let sockets: Vec<String> = self.0.iter().map(|proxy| proxy.address().to_string()).collect();
        format!("nats://{}/{path}", sockets.join(","))
    }

    /// Sets the fault of all open connections.
    pub(super) fn inject(&self, fault: Fault) {
        self.0.iter().for_each(|proxy| (0..proxy.connections() as u64).for_each(|number| proxy.inject(number, fault)));
    }

    /// Removes delays, throttles and stalls. Closed connections stay closed.
    pub(super) fn clear_faults(&self) {
        self.0.iter().for_each(Proxy::clear_faults);
    }
}
