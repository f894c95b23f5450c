//! Provides the fleet page with the ranks of a run, which a follower reads from a broker.

use std::sync::{Arc, Weak};

use serde::Serialize;
use vramscope_collector::{FleetClient, FleetFeed, MetricFamily, MetricSample, MetricValue};
use vramscope_fleet::Follower;
use vramscope_insight::fleet::{FleetView, ProcessIdentity, RankMetric, RankRow, ViewEncoder};

/// Error message of a command that arrives while the server stops.
const STOPPING: &str = "the server is stopping";

/// The ranks of a run. The reference to the follower is weak, so that the follower can stop.
#[derive(Clone, Debug)]
pub(crate) struct FollowedRun {
    run: String,
    follower: Weak<Follower>,
}

/// The view of a run, as it is serialized to JSON.
#[derive(Serialize)]
struct JsonView<'a> {
    run: &'a str,
    #[serde(flatten)]
    view: &'a FleetView,
}

impl FollowedRun {
    /// Creates the feed of the ranks that a follower reads.
    pub(crate) fn feed(follower: &Arc<Follower>) -> Arc<dyn FleetFeed> {
        Arc::new(Self { run: follower.run().to_owned(), follower: Arc::downgrade(follower) })
    }

    /// Returns the newest view; `None` while the server stops.
    fn view(&self) -> Option<Arc<FleetView>> {
        Some(self.follower.upgrade()?.view())
    }
}

impl FleetFeed for FollowedRun {
    fn run(&self) -> String {
        self.run.clone()
    }

    fn client(&self) -> Box<dyn FleetClient> {
        Box::new(RunClient { run: self.clone(), encoder: ViewEncoder::default() })
    }

    fn json(&self) -> String {
        let view = self.view().unwrap_or_default();
        serde_json::to_string(&JsonView { run: &self.run, view: &view }).expect("numbers and texts always serialize")
    }

    fn metrics(&self) -> Vec<MetricFamily> {
        let view = self.view().unwrap_or_default();
        let sample = |(row, value): (&RankRow, f64)| MetricSample {
            labels: row.metric_labels().to_vec(),
            value: MetricValue::Float(value),
        };
        let family = |metric: RankMetric| MetricFamily {
            name: format!("vramscope_rank_{}", metric.name),
            help: metric.help,
            unit: metric.unit,
            is_counter: false,
            samples: metric.values(&view.ranks).map(sample).collect(),
        };
        RankMetric::ALL.map(family).to_vec()
    }

    fn open(&self, identity: &str) -> Result<(), String> {
        let follower = self.follower.upgrade().ok_or(STOPPING)?;
        follower.open(&ProcessIdentity(identity.to_owned())).map_err(|error| error.to_string())
    }

    fn close(&self, identity: &str) -> Result<(), String> {
        let follower = self.follower.upgrade().ok_or(STOPPING)?;
        follower.close(&ProcessIdentity(identity.to_owned()));
        Ok(())
    }
}

/// The encoder of a run's views for one client.
struct RunClient {
    run: FollowedRun,
    encoder: ViewEncoder,
}

impl FleetClient for RunClient {
    fn update(&mut self) -> Option<Vec<u8>> {
        self.encoder.encode(&*self.run.view()?)
    }
}
