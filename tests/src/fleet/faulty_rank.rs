//! A rank behind a faulty network.

use std::thread;

use vramscope_collector::HubLimits;

use super::cluster_proxies::ClusterProxies;
use super::pushing_rank::PushingRank;
use crate::broker_cluster::BrokerCluster;

/// A rank that pushes all its events through a faulty network.
pub(super) struct FaultyRank {
    pub(super) rank: PushingRank,
    pub(super) network: ClusterProxies,
}

impl FaultyRank {
    /// Starts a rank.
    pub(super) fn start(rank: u32, cluster: &BrokerCluster, limits: HubLimits) -> Self {
        let network = ClusterProxies::start(cluster);
        let url = network.address("faults?push=all");
        Self { rank: PushingRank::with_limits(rank, &url, limits), network }
    }

    /// Ends the rank without a message, as after a kill.
    pub(super) fn kill(self) {
        let Self { rank, network } = self;
        drop(network);
        // Waits for a connection until it gives up.
        thread::spawn(move || drop(rank));
    }
}
