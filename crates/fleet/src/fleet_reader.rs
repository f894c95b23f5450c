//! Reads the summaries of all processes and computes the fleet view from them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::DeliverPolicy;
use tokio::time::MissedTickBehavior;
use vramscope_insight::fleet::{EventsState, Fleet, FleetView, ProcessIdentity};

use crate::connection::Connection;
use crate::process_follower::SILENCE;
use crate::process_record::ProcessRecord;
use crate::subject_reader::SubjectReader;
use crate::summaries::INTERVAL;
use crate::summary_batch::SummaryBatch;
use crate::{subjects, unix_time};

/// How old summaries may be that are read at the start: enough for all time windows of the fleet
/// view if steps take at most 6 s. With thousands of ranks, reading older summaries would take too
/// long.
const HISTORY: Duration = Duration::from_secs(65);
/// Time window whose smallest message delay gives the offset of the broker's clock.
const CLOCK_WINDOW: Duration = Duration::from_secs(60);

/// The fleet that a follower shows. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedFleet(Arc<Mutex<FleetState>>);

/// The fleet, the broker's clock, and the newest view.
#[derive(Debug, Default)]
struct FleetState {
    fleet: Fleet,
    clock: BrokerClock,
    view: Arc<FleetView>,
    /// Number of invalid messages.
    invalid: u64,
}

impl SharedFleet {
    /// Calls `act` with the locked state and returns its result.
    fn with<T>(&self, act: impl FnOnce(&mut FleetState) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds or changes the description of a process.
    pub(crate) fn describe(&self, record: &ProcessRecord) {
        let identity = ProcessIdentity(record.process.identity.clone());
        self.with(|state| state.fleet.describe(identity, record.description()));
    }

    /// Sets whether the events of a process are read, and the number of its first device in the
    /// server's recording, for the view.
    pub(crate) fn set_events(&self, identity: &str, events: EventsState, device: Option<u16>) {
        self.with(|state| state.fleet.set_events(&ProcessIdentity(identity.to_owned()), events, device));
    }

    /// Returns true if no summary of the process has arrived for [`SILENCE`].
    pub(crate) fn is_silent(&self, identity: &str) -> bool {
        let silence_ns = self.with(|state| {
            let now_ns = state.clock.now_ns(unix_time::now_ns());
            state.fleet.silence_ns(&ProcessIdentity(identity.to_owned()), now_ns)
        });
        silence_ns.is_none_or(|silence_ns| u128::from(silence_ns) >= SILENCE.as_nanos())
    }

    /// Returns the view of the last tick; there are ten ticks a second.
    pub(crate) fn view(&self) -> Arc<FleetView> {
        self.with(|state| Arc::clone(&state.view))
    }

    /// Compares the ranks and computes a new view.
    fn tick(&self) {
        self.with(|state| {
            let now_ns = state.clock.now_ns(unix_time::now_ns());
            state.fleet.tick(now_ns);
            state.view = Arc::new(state.fleet.view(now_ns));
        });
    }

    /// Adds the summaries in a message; ignores one that is invalid.
    fn add(&self, message: &Message) {
        let added = read_origin(message)
            .and_then(|(sender, broker_ns)| Ok((sender, broker_ns, SummaryBatch::parse(&message.payload)?)));
        self.with(|state| match added {
            Ok((sender, broker_ns, batch)) => {
                state.clock.add(unix_time::now_ns(), broker_ns);
                for (identity, summary) in batch.summaries {
                    let identity = if identity.is_empty() { sender.clone() } else { ProcessIdentity(identity) };
                    state.fleet.add(&sender, identity, summary, broker_ns);
                }
            }
            Err(reason) => {
                state.invalid += 1;
                if state.invalid == 1 {
                    tracing::warn!("ignored summaries on {}: {reason}", message.subject);
                }
            }
        });
    }
}

/// Returns the sender of a message with summaries, and when the broker stored it, in nanoseconds
/// since 1970.
pub(crate) fn read_origin(message: &Message) -> Result<(ProcessIdentity, u64), String> {
    let (_, identity) = subjects::parse_process(&message.subject).ok_or("the subject names no process")?;
    let published = message.info().map_err(|error| error.to_string())?.published;
    let broker_ns = unix_time::since_1970_ns(published.into());
    Ok((ProcessIdentity(identity.to_owned()), broker_ns))
}

/// Reads summaries for as long as the follower runs.
pub(crate) async fn read_summaries(connection: Connection, run: String, shared: SharedFleet) {
    let start = SystemTime::now().checked_sub(HISTORY).unwrap_or(UNIX_EPOCH);
    let mut reader = SubjectReader::new(
        connection,
        subjects::summaries_stream(&run),
        subjects::all_summaries(&run),
        DeliverPolicy::ByStartTime { start_time: start.into() },
    );
    loop {
        shared.add(&reader.next().await);
    }
}

/// Compares the ranks ten times a second for as long as the follower runs.
pub(crate) async fn compare_ranks(shared: SharedFleet) {
    let mut interval = tokio::time::interval(INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        shared.tick();
    }
}

/// Estimates the time by the broker's clock from the messages that arrive.
///
/// A message arrives some time after the broker stored it. The smallest difference between these
/// two times is used as the difference of the clocks; it is too large by the smallest delay of a
/// message.
#[derive(Debug, Default)]
struct BrokerClock {
    /// Differences, own time minus broker's, with the own time at which each was measured;
    /// differences increase.
    differences: VecDeque<(u64, i64)>,
}

impl BrokerClock {
    /// Adds a message that was stored at `broker_ns` and arrived at `own_ns`.
    fn add(&mut self, own_ns: u64, broker_ns: u64) {
        let difference = (i128::from(own_ns) - i128::from(broker_ns)).clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        // Older, larger differences are removed, because they can never become the smallest.
        while self.differences.pop_back_if(|(_, known)| *known >= difference).is_some() {}
        self.differences.push_back((own_ns, difference));
        let oldest_ns = own_ns.saturating_sub(CLOCK_WINDOW.as_nanos() as u64);
        while self.differences.pop_front_if(|(measured_ns, _)| *measured_ns < oldest_ns).is_some() {}
    }

    /// Returns the time by the broker's clock at `own_ns`.
    fn now_ns(&self, own_ns: u64) -> u64 {
        let difference = self.differences.front().map_or(0, |(_, difference)| *difference);
        own_ns.saturating_add_signed(difference.saturating_neg())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_delay_gives_the_brokers_time() {
        let mut clock = BrokerClock::default();
        assert_eq!(clock.now_ns(500), 500);
        let second = 1_000_000_000;
        // The own clock is 5 s ahead; messages take 1 to 300 ms.
        for (tick, delay_ms) in [300, 20, 1, 90, 250].into_iter().enumerate() {
            let broker_ns = (100 + tick as u64) * second;
            clock.add(broker_ns + 5 * second + delay_ms * 1_000_000, broker_ns);
        }
        assert_eq!(clock.now_ns(205 * second), 200 * second - 1_000_000);
        // After a minute, the measurement with the least delay is forgotten.
        clock.add(175 * second, 169 * second);
        assert_eq!(clock.differences.len(), 1);
        assert_eq!(clock.now_ns(205 * second), 199 * second);
        clock.add(0, u64::MAX);
        clock.add(u64::MAX, 0);
    }
}
