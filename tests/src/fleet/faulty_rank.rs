//! A rank behind a faulty network.

use std::path::Path;

use super::cluster_proxies::ClusterProxies;
use super::rank_process::RankProcess;
use crate::broker_cluster::BrokerCluster;

/// A rank that pushes all its events through a faulty network.
pub(super) struct FaultyRank {
    pub(super) process: RankProcess,
    pub(super) network: ClusterProxies,
    /// Events of the process until the last check.
    pub(super) checked_events: u64,
}

impl FaultyRank {
    /// Starts a rank of a run with the program `fleet`. See [`RankProcess::start`].
    pub(super) fn start(program: &Path, rank: u32, cluster: &BrokerCluster, run: &str, is_small: bool) -> Self {
        let network = ClusterProxies::start(cluster);
        let url = network.address(&format!("{run}?push=all"));
        Self { process: RankProcess::start(program, rank, &url, is_small), network, checked_events: 0 }
    }
}
