//! A rank behind a faulty network, and a server that follows all ranks.

use std::collections::BTreeMap;
use std::thread;

use vramscope_collector::{Aggregator, Hub, HubLimits, Outputs, Push, PushAddress, Rank};
use vramscope_fleet::{FleetAddress, Follower, FollowerOptions};
use vramscope_trace::{DecodedItem, Decoder, DeviceId, Event, EventKind, Recording};

use crate::broker_cluster::BrokerCluster;
use crate::proxy::Proxy;
use crate::simulated_rank::SimulatedRank;

/// A simulated rank that pushes all its events through a proxy for each broker node.
pub(super) struct FaultyRank {
    pub(super) rank: u32,
    pub(super) program: SimulatedRank,
    pub(super) proxies: Vec<Proxy>,
    push: Push,
}

impl FaultyRank {
    /// Starts a rank.
    pub(super) fn start(rank: u32, cluster: &BrokerCluster, limits: HubLimits) -> Self {
        let proxies: Vec<Proxy> = (0..cluster.size()).map(|node| Proxy::start(cluster.node(node).socket())).collect();
        let sockets: Vec<String> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
        let url = format!("nats://{}/faults?push=all", sockets.join(","));
        vramscope_fleet::register();
        let mut program = SimulatedRank::new(fastrand::u64(..), limits);
        // A rank without events has no device that a server could show.
        program.run(10);
        let address = PushAddress::parse(&url).expect("a valid address");
        let number = Rank { global: Some(rank), local: Some(rank) };
        let push = Push::start(address, "train.py", number, program.hub()).expect("a thread starts");
        Self { rank, program, proxies, push }
    }

    /// Ends the rank without a message, as after a kill.
    pub(super) fn kill(self) {
        let Self { proxies, push, .. } = self;
        drop(proxies);
        // Waits for a connection until it gives up.
        thread::spawn(move || drop(push));
    }

    /// Returns the identity of its recording.
    fn identity(&self) -> String {
        self.program.hub().identity().to_string()
    }
}

/// A server that follows the run.
pub(super) struct FollowingServer {
    hub: Hub,
    aggregator: Aggregator,
    follower: Follower,
}

impl FollowingServer {
    pub(super) fn start(url: &str) -> Self {
        let (aggregator, hub) = (Aggregator::new(), Hub::default());
        aggregator.begin(Outputs { hub: Some(hub.clone()), ..Outputs::default() }).expect("a thread starts");
        let address = FleetAddress::parse(url).expect("a valid address");
        let options = FollowerOptions::default();
        let follower = Follower::connect(&address, aggregator.clone(), options).expect("the broker can be reached");
        follower.follow();
        Self { hub, aggregator, follower }
    }

    /// Returns what reads the run.
    pub(super) fn follower(&self) -> &Follower {
        &self.follower
    }

    /// Returns the merged recording so far.
    fn recording(&self) -> Recording {
        let mut recording = Recording::new();
        for chunk in self.hub.everything() {
            recording.push(&chunk.bytes).expect("the merged recording is valid");
        }
        recording
    }

    /// Returns the number of a rank's device in the merged recording.
    fn device(&self, rank: &FaultyRank) -> Option<DeviceId> {
        let (view, identity) = (self.follower.view(), rank.identity());
        view.ranks.iter().find(|row| row.identity.0 == identity)?.device.map(DeviceId)
    }

    /// Returns the ranks that are not shown as they are, and why.
    pub(super) fn wrong_ranks(&self, ranks: &[FaultyRank]) -> Vec<String> {
        let recording = self.recording();
        let wrong = |rank: &FaultyRank| {
            let device = self.device(rank).and_then(|device| recording.end_state().device(device));
            let Some(shown) = device else { return Some(format!("rank {} has no device", rank.rank)) };
            (!rank.program.is_shown_by(shown)).then(|| {
                let [shown, expected] = [shown, rank.program.device()].map(|device| device.counters().allocated);
                format!("rank {} has {expected} bytes allocated, {shown} are shown", rank.rank)
            })
        };
        ranks.iter().filter_map(wrong).collect()
    }

    /// Returns, for each rank, how many of its events are shown as lost.
    pub(super) fn lost_events_by_rank(&self, ranks: &[FaultyRank]) -> Vec<(u32, u64)> {
        let mut decoder = Decoder::new();
        self.hub.everything().iter().for_each(|chunk| decoder.push(&chunk.bytes));
        let mut lost_by_device: BTreeMap<DeviceId, u64> = BTreeMap::new();
        while let Some(item) = decoder.next_item().expect("the merged recording is valid") {
            if let DecodedItem::Event(Event { device, kind: EventKind::Gap { lost }, .. }) = item {
                *lost_by_device.entry(device).or_default() += lost;
            }
        }
        let lost = |rank: &FaultyRank| self.device(rank).and_then(|device| lost_by_device.get(&device)).copied();
        ranks.iter().map(|rank| (rank.rank, lost(rank).unwrap_or(0))).collect()
    }
}

impl Drop for FollowingServer {
    fn drop(&mut self) {
        self.aggregator.stop();
    }
}
