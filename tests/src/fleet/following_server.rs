//! A server that follows a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use vramscope_collector::{Aggregator, Hub, Outputs};
use vramscope_fleet::{FleetAddress, Follower, FollowerOptions};
use vramscope_insight::fleet::FleetView;
use vramscope_trace::{DecodedItem, Decoder, DeviceId, Event, EventKind, Recording};

use super::expected_rank::ExpectedRank;

/// A server that follows a run and merges the recordings of its ranks.
#[derive(Debug)]
pub struct FollowingServer {
    hub: Hub,
    aggregator: Aggregator,
    follower: Option<Follower>,
}

impl FollowingServer {
    /// Starts a server that follows the run at `url`.
    ///
    /// # Panics
    /// See [`with_options`](Self::with_options).
    #[must_use]
    pub fn start(url: &str) -> Self {
        Self::with_options(url, FollowerOptions::default())
    }

    /// Starts a server with options.
    ///
    /// # Panics
    /// Panics if the broker cannot be reached or no thread can be started.
    #[must_use]
    pub fn with_options(url: &str, options: FollowerOptions) -> Self {
        let (aggregator, hub) = (Aggregator::new(), Hub::default());
        aggregator.begin(Outputs { hub: Some(hub.clone()), ..Outputs::default() }).expect("a thread starts");
        let address = FleetAddress::parse(url).expect("a valid address");
        let follower = Follower::connect(&address, aggregator.clone(), options).expect("the broker can be reached");
        follower.follow();
        Self { hub, aggregator, follower: Some(follower) }
    }

    /// Returns the merged recording so far.
    ///
    /// # Panics
    /// Panics if it is damaged.
    #[must_use]
    pub fn recording(&self) -> Recording {
        let mut recording = Recording::new();
        for chunk in self.hub.everything() {
            recording.push(&chunk.bytes).expect("the merged recording is valid");
        }
        recording
    }

    /// Returns all ranks as the server compares them.
    ///
    /// # Panics
    /// Panics after [`stop`](Self::stop).
    #[must_use]
    pub fn view(&self) -> Arc<FleetView> {
        self.follower().view()
    }

    /// Returns what reads the run.
    ///
    /// # Panics
    /// Panics after [`stop`](Self::stop).
    #[must_use]
    pub fn follower(&self) -> &Follower {
        self.follower.as_ref().expect("the server runs")
    }

    /// Returns what merges the recordings of the ranks.
    #[must_use]
    pub fn aggregator(&self) -> &Aggregator {
        &self.aggregator
    }

    /// Returns the number of a rank's device in the merged recording.
    fn device(&self, rank: &ExpectedRank) -> Option<DeviceId> {
        self.view().ranks.iter().find(|row| row.identity.0 == rank.identity)?.device.map(DeviceId)
    }

    /// Returns the ranks that are not shown as they are in the merged recording, and why.
    pub fn wrong_ranks(&self, ranks: impl IntoIterator<Item: Into<ExpectedRank>>) -> Vec<String> {
        let recording = self.recording();
        let wrong = |rank: ExpectedRank| {
            let device = self.device(&rank).and_then(|device| recording.end_state().device(device));
            let Some(shown) = device else { return Some(format!("rank {} has no device", rank.rank)) };
            (!rank.is_shown_by(shown)).then(|| {
                let shown = shown.counters().allocated;
                format!("rank {} has {} bytes allocated, {shown} are shown", rank.rank, rank.allocated)
            })
        };
        ranks.into_iter().map(Into::into).filter_map(wrong).collect()
    }

    /// Returns, for each rank, how many of its events are shown as lost.
    ///
    /// # Panics
    /// Panics if the merged recording is damaged.
    pub fn lost_events_by_rank(&self, ranks: impl IntoIterator<Item: Into<ExpectedRank>>) -> Vec<(u32, u64)> {
        let mut decoder = Decoder::new();
        self.hub.everything().iter().for_each(|chunk| decoder.push(&chunk.bytes));
        let mut lost_by_device: BTreeMap<DeviceId, u64> = BTreeMap::new();
        while let Some(item) = decoder.next_item().expect("the merged recording is valid") {
            if let DecodedItem::Event(Event { device, kind: EventKind::Gap { lost }, .. }) = item {
                *lost_by_device.entry(device).or_default() += lost;
            }
        }
        let lost = |rank: &ExpectedRank| self.device(rank).and_then(|device| lost_by_device.get(&device)).copied();
        ranks.into_iter().map(Into::into).map(|rank| (rank.rank, lost(&rank).unwrap_or(0))).collect()
    }

    /// Ends the server.
    pub fn stop(&mut self) {
        self.follower = None;
        self.aggregator.stop();
    }
}

impl Drop for FollowingServer {
    fn drop(&mut self) {
        self.stop();
    }
}
