//! A simulated rank that pushes to a broker.

use vramscope_collector::{HubLimits, Push, PushAddress, Rank};
use vramscope_fleet::subjects;

use crate::simulated_rank::SimulatedRank;

/// Events by which each rank is ahead of the one before it.
const SHIFT_EVENTS: u64 = 37;

/// A simulated rank that pushes to a broker.
#[derive(Debug)]
pub struct PushingRank {
    /// The number of the rank.
    pub rank: u32,
    /// What it does.
    pub program: SimulatedRank,
    /// Its connection; `None` once it has ended.
    pub push: Option<Push>,
}

impl PushingRank {
    /// Starts a rank that pushes to the server at `url`.
    ///
    /// # Panics
    /// See [`with_limits`](Self::with_limits).
    #[must_use]
    pub fn start(rank: u32, url: &str) -> Self {
        Self::with_limits(rank, url, HubLimits::default())
    }

    /// Starts a rank with a history of limited size.
    ///
    /// # Panics
    /// Panics if the address is invalid or no thread can be started.
    #[must_use]
    pub fn with_limits(rank: u32, url: &str, limits: HubLimits) -> Self {
        vramscope_fleet::register();
        // Each rank is elsewhere in its training. A rank without events would have no device that a
        // server could show.
        let program = SimulatedRank::new(10 + SHIFT_EVENTS * u64::from(rank), limits);
        let address = PushAddress::parse(url).expect("a valid address");
        let number = Rank { global: Some(rank), local: Some(rank % 8) };
        let push = Push::start(address, "train.py", number, program.hub()).expect("a thread starts");
        Self { rank, program, push: Some(push) }
    }

    /// Returns its identity at the broker.
    #[must_use]
    pub fn identity(&self) -> String {
        subjects::process_identity(&self.program.hub().identity().to_string(), Some(self.rank))
    }

    /// Ends the rank's program and its recording.
    pub fn end(&mut self) {
        self.program.hub().end();
        self.push = None;
    }
}
