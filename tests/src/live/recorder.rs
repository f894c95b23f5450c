//! `vramscope record`, following a program over a faulty network.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use vramscope_trace::{Recording, digest};

use super::{TIMEOUT, read_complete_file};
use crate::load::PoolSnapshot;
use crate::program::vramscope;

/// Interval between checks of the process and its file.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A running `vramscope record`. Dropping it ends the process.
pub(super) struct Recorder {
    child: Child,
    path: PathBuf,
}

impl Recorder {
    pub(super) fn start(page: &str, path: &Path) -> Self {
        let mut command = vramscope();
        command.args(["record", page, "-o"]).arg(path).stdin(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self { child, path: path.to_owned() }
    }

    /// Waits until the file reaches the pool's newest event.
    pub(super) fn wait_for(&self, snapshot: &PoolSnapshot) -> Result<(), String> {
        wait("record has not caught up", || {
            let mut written = Recording::overview_only(None);
            // The last chunk may be incomplete.
            fs::read(&self.path).is_ok_and(|bytes| written.push(&bytes).is_ok())
                && written.end_event() >= snapshot.events()
        })
    }

    /// Waits until the process ends with the recording. Returns the digest of the last state and
    /// the number of lost events.
    pub(super) fn finish(mut self, snapshot: &PoolSnapshot) -> Result<(u64, u64), String> {
        let child = &mut self.child;
        wait("record has not ended", || child.try_wait().is_ok_and(|status| status.is_some()))?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("record: {status}"));
        }
        let (recording, _) = read_complete_file(&self.path)?;
        snapshot.check(recording.end_state(), recording.definitions()).map_err(|error| format!("record: {error}"))?;
        let (events, lost_events) = (recording.events(), recording.lost_events());
        if (recording.first_event(), events + lost_events) != (0, snapshot.events()) {
            return Err(format!("record: {events} events from {}, {lost_events} lost", recording.first_event()));
        }
        Ok((digest(recording.end_state()), lost_events))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(what: &str, mut is_done: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + TIMEOUT;
    while !is_done() {
        if Instant::now() > deadline {
            return Err(format!("{what} after {TIMEOUT:?}"));
        }
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
