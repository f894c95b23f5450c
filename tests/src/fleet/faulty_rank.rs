//! A rank behind a faulty network.

use std::thread;

use vramscope_collector::HubLimits;

use super::pushing_rank::PushingRank;
use crate::broker_cluster::BrokerCluster;
use crate::proxy::Proxy;

/// A rank that pushes all its events through a proxy for each broker node.
pub(super) struct FaultyRank {
    pub(super) rank: PushingRank,
    pub(super) proxies: Vec<Proxy>,
}

impl FaultyRank {
    /// Starts a rank.
    pub(super) fn start(rank: u32, cluster: &BrokerCluster, limits: HubLimits) -> Self {
        let proxies: Vec<Proxy> = (0..cluster.size()).map(|node| Proxy::start(cluster.node(node).socket())).collect();
        let sockets: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let url = format!("nats://{}/faults?push=all", sockets.join(","));
        Self { rank: PushingRank::with_limits(rank, &url, limits), proxies }
    }

    /// Ends the rank without a message, as after a kill.
    pub(super) fn kill(self) {
        let Self { rank, proxies } = self;
        drop(proxies);
        // Waits for a connection until it gives up.
        thread::spawn(move || drop(rank));
    }
}
