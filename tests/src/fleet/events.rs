//! Measures what a server shows of ranks that send every event.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use super::following_server::FollowingServer;
use super::training::Training;
use crate::broker::Broker;
use crate::process::ProcessUsage;

/// Longest wait until a server shows all ranks as they are.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Interval at which memory is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct EventPlan {
    /// Number of ranks.
    pub ranks: u32,
    /// Events of each rank in a second.
    pub rate: u64,
    /// How long they make events.
    pub time: Duration,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct EventFigures {
    /// Number of ranks.
    pub ranks: u32,
    /// Events of all ranks.
    pub events: u64,
    /// Time in which they were made, in seconds.
    pub seconds: f64,
    /// Events that the server shows as lost.
    pub lost: u64,
    /// Time from the last event until the server showed all ranks as they are; `None` if it did
    /// not in time.
    pub behind: Option<Duration>,
    /// Ranks that the server does not show as they are, and why.
    pub wrong: Vec<String>,
    /// Processor time in seconds for each second: broker, and this process (ranks and server).
    pub processors: [f64; 2],
    /// The largest memory of the broker and of this process, in bytes.
    pub memory: [u64; 2],
    /// Size of the broker's store, in bytes.
    pub store_bytes: u64,
}

impl fmt::Display for EventFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.events as f64 / self.seconds / f64::from(self.ranks);
        writeln!(
            f,
            "{} ranks: {} events in {:.1} s, {rate:.0} a second each; {} lost",
            self.ranks, self.events, self.seconds, self.lost
        )?;
        let equal = self.ranks as usize - self.wrong.len();
        let behind = self.behind.map_or("not in time".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()));
        writeln!(f, "{equal} of {} states are equal at both ends, {behind} after the last event", self.ranks)?;
        let ([broker, own], [broker_bytes, own_bytes]) = (self.processors, self.memory);
        write!(
            f,
            "processors: broker {broker:.2}, ranks and server {own:.2}; memory at most {} and {} MiB; store {} MiB",
            broker_bytes >> 20,
            own_bytes >> 20,
            self.store_bytes >> 20
        )?;
        self.wrong.iter().try_for_each(|wrong| write!(f, "\nFAILED: {wrong}"))
    }
}

/// Returns what the broker and this process use.
fn usage(broker: &Broker) -> [ProcessUsage; 2] {
    [broker.usage(), ProcessUsage::of(std::process::id())].map(Option::unwrap_or_default)
}

/// Simulates the plan's ranks at a broker of its own, and compares what a server shows.
///
/// # Panics
/// Panics if there is no `nats-server`.
#[must_use]
pub fn measure_events(plan: &EventPlan) -> EventFigures {
    let broker = Broker::start();
    let url = broker.address("events");
    let server = FollowingServer::start(&url);
    let (start, before) = (Instant::now(), usage(&broker));
    let mut training = Training::start(&url, plan.ranks, plan.rate);
    let mut figures = EventFigures { ranks: plan.ranks, ..EventFigures::default() };
    while start.elapsed() < plan.time {
        thread::sleep(POLL_INTERVAL);
        let used = usage(&broker);
        figures.memory = std::array::from_fn(|index| figures.memory[index].max(used[index].resident_bytes));
    }
    training.stop();
    figures.seconds = start.elapsed().as_secs_f64();
    let after = usage(&broker);
    figures.processors = std::array::from_fn(|index| after[index].cores_since(&before[index], figures.seconds));
    figures.events = training.events();
    let stopped = Instant::now();
    let ranks = training.ranks();
    loop {
        let looked = stopped.elapsed();
        figures.wrong = server.wrong_ranks(ranks.iter());
        if figures.wrong.is_empty() {
            figures.behind = Some(looked);
            break;
        }
        if looked > TIMEOUT {
            break;
        }
        thread::sleep(POLL_INTERVAL);
    }
    figures.lost = server.lost_events_by_rank(ranks.iter()).iter().map(|(_, lost)| lost).sum();
    figures.store_bytes = broker.store_bytes();
    figures
}
