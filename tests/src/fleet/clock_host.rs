//! A simulated machine whose clock jumps.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::runtime::{Builder, Runtime};
use vramscope_collector::Process;
use vramscope_fleet::{FleetAddress, SimulatedHost, subjects};
use vramscope_insight::fleet::{Acknowledged, DeviceSummary, OffsetEstimate, Summary};

use super::following_server::FollowingServer;

/// Interval between two summaries.
const INTERVAL: Duration = Duration::from_millis(100);
/// Longest wait until a server knows the clock's offset.
const TIMEOUT: Duration = Duration::from_secs(90);

/// A machine with one process, which sends summaries with the times of its clock.
pub(super) struct ClockHost {
    rank: u32,
    /// How far the clock is ahead, in nanoseconds.
    ahead_ns: Arc<AtomicI64>,
    /// Sends until it is dropped.
    _runtime: Runtime,
}

impl ClockHost {
    /// Starts a machine with a process of this rank.
    pub(super) fn start(address: &FleetAddress, rank: u32) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread starts");
        let process = Process {
            identity: subjects::process_identity(&format!("{:032x}", fastrand::u128(..)), Some(rank)),
            rank: Some(rank),
            host: "clock".to_owned(),
            ..Process::default()
        };
        let connecting = SimulatedHost::connect(address.clone(), vec![process], "");
        let host = runtime.block_on(connecting).expect("the broker can be reached");
        let ahead_ns = Arc::new(AtomicI64::new(0));
        runtime.spawn(send(host, Arc::clone(&ahead_ns)));
        Self { rank, ahead_ns, _runtime: runtime }
    }

    /// Lets the clock jump forward or back.
    pub(super) fn jump(&self, distance: Duration, is_forward: bool) {
        let distance_ns = distance.as_nanos() as i64;
        self.ahead_ns.fetch_add(if is_forward { distance_ns } else { -distance_ns }, Ordering::Relaxed);
    }

    /// Waits until the server knows the clock's offset.
    ///
    /// # Errors
    /// If it does not. The text says what it shows.
    pub(super) fn check(&self, server: &FollowingServer) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        let expected = -self.ahead_ns.load(Ordering::Relaxed);
        loop {
            let view = server.follower().view();
            let row = view.ranks.iter().find(|row| row.rank == Some(self.rank));
            let clock = row.and_then(|row| row.clock);
            if clock.is_some_and(|OffsetEstimate { offset_ns, error_ns }| offset_ns.abs_diff(expected) <= error_ns) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(format!("the clock is {expected} ns off, {clock:?} is shown"));
            }
            std::thread::sleep(INTERVAL);
        }
    }
}

/// Sends a summary ten times a second. The acknowledgement's time is moved as the clock is.
async fn send(host: SimulatedHost, ahead_ns: Arc<AtomicI64>) {
    let mut interval = tokio::time::interval(INTERVAL);
    for number in 0.. {
        interval.tick().await;
        let shift = |time_ns: u64| time_ns.saturating_add_signed(ahead_ns.load(Ordering::Relaxed));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is right");
        let acknowledged = host.acknowledged();
        let summary = Summary {
            number,
            time_unix_ns: shift(now.as_nanos() as u64),
            devices: vec![DeviceSummary { allocated: 1 << 30, reserved: 1 << 30, ..DeviceSummary::default() }],
            acknowledged: acknowledged.map(|known| Acknowledged { time_unix_ns: shift(known.time_unix_ns), ..known }),
            ..Summary::default()
        };
        host.send(number, vec![summary]).await;
    }
}
