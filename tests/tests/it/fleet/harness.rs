//! Waits for what servers show.

use std::thread;
use std::time::{Duration, Instant};

use vramscope_tests::Broker;
use vramscope_tests::fleet::{ExpectedRank, FollowingServer, PushingRank, print_log};
use vramscope_trace::{DeviceId, Recording};

/// Starts a broker, and to print what the libraries log.
pub(crate) fn start_broker() -> Broker {
    print_log();
    Broker::start()
}

/// Longest wait for anything, on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns true if the merged recording shows the rank's memory as it is.
pub(crate) fn shows(recording: &Recording, rank: &PushingRank) -> bool {
    let merged = recording.end_state().device(DeviceId(u16::try_from(rank.rank).expect("a small rank")));
    merged.is_some_and(|merged| ExpectedRank::from(rank).is_shown_by(merged))
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
