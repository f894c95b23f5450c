//! Ranks that push to a broker, and servers that follow it.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use vramscope_collector::{Aggregator, Hub, HubLimits, Outputs, Push, PushAddress, Rank, log_text};
use vramscope_fleet::{FleetAddress, Follower, FollowerOptions};
use vramscope_insight::fleet::FleetView;
use vramscope_tests::SimulatedRank;
use vramscope_trace::{DeviceId, Recording};

/// What the libraries have logged in all tests so far.
static LOG: Mutex<String> = Mutex::new(String::new());

/// Keeps what the libraries log, and prints it for the output of a failed test.
struct StderrLayer;

impl<S: Subscriber> Layer<S> for StderrLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("vramscope") {
            let line = format!("{} {}\n", event.metadata().level(), log_text(event));
            eprint!("{line}");
            LOG.lock().unwrap_or_else(PoisonError::into_inner).push_str(&line);
        }
    }
}

/// Starts to print what the libraries log.
fn print_log() {
    // The only failure is a second call.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(StderrLayer));
}

/// Returns what the libraries have logged in all tests so far.
pub(crate) fn logged() -> String {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Longest wait for anything, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A simulated rank that pushes to a broker.
pub(crate) struct PushingRank {
    pub(crate) rank: u32,
    pub(crate) program: SimulatedRank,
    pub(crate) push: Option<Push>,
}

impl PushingRank {
    /// Starts a rank that pushes to the server at `url`.
    pub(crate) fn start(rank: u32, url: &str) -> Self {
        Self::with_limits(rank, url, HubLimits::default())
    }

    /// Starts a rank with a history of limited size.
    pub(crate) fn with_limits(rank: u32, url: &str, limits: HubLimits) -> Self {
        print_log();
        vramscope_fleet::register();
        let program = SimulatedRank::new(u64::from(rank), limits);
        let address = PushAddress::parse(url).expect("a valid address");
        let number = Rank { global: Some(rank), local: Some(rank % 8) };
        let push = Push::start(address, "train.py", number, program.hub()).expect("a thread starts");
        Self { rank, program, push: Some(push) }
    }

    /// Ends the rank's program and its recording.
    pub(crate) fn end(&mut self) {
        self.program.hub().end();
        self.push = None;
    }
}

/// A server that follows a run.
pub(crate) struct FollowingServer {
    hub: Hub,
    aggregator: Aggregator,
    follower: Option<Follower>,
}

impl FollowingServer {
    pub(crate) fn start(url: &str) -> Self {
        Self::with_options(url, FollowerOptions::default())
    }

    pub(crate) fn with_options(url: &str, options: FollowerOptions) -> Self {
        let (aggregator, hub) = (Aggregator::new(), Hub::default());
        aggregator.begin(Outputs { hub: Some(hub.clone()), ..Outputs::default() }).expect("a thread starts");
        let address = FleetAddress::parse(url).expect("a valid address");
        let follower = Follower::connect(&address, aggregator.clone(), options).expect("the broker can be reached");
        follower.follow();
        Self { hub, aggregator, follower: Some(follower) }
    }

    /// Returns the merged recording so far.
    pub(crate) fn recording(&self) -> Recording {
        let mut recording = Recording::new();
        for chunk in self.hub.everything() {
            recording.push(&chunk.bytes).expect("the merged recording is valid");
        }
        recording
    }

    /// Returns all ranks as the server compares them.
    pub(crate) fn view(&self) -> Arc<FleetView> {
        self.follower().view()
    }

    /// Returns what reads the run.
    pub(crate) fn follower(&self) -> &Follower {
        self.follower.as_ref().expect("the server runs")
    }

    /// Ends the server.
    pub(crate) fn stop(&mut self) {
        self.follower = None;
        self.aggregator.stop();
    }
}

/// Returns true if the merged recording shows the rank's memory as it is.
pub(crate) fn shows(recording: &Recording, rank: &PushingRank) -> bool {
    let merged = recording.end_state().device(DeviceId(u16::try_from(rank.rank).expect("a small rank")));
    merged.is_some_and(|merged| rank.program.is_shown_by(merged))
}

/// Waits until a server shows all ranks as they are.
#[track_caller]
pub(crate) fn wait_until_shown(server: &FollowingServer, ranks: &[PushingRank]) -> Recording {
    let mut recording = server.recording();
    wait_until("the server shows all ranks", || {
        let are_shown = ranks.iter().all(|rank| shows(&recording, rank));
        if !are_shown {
            recording = server.recording();
        }
        are_shown
    });
    recording
}
