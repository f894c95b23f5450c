//! `vramscope record`, following through whatever happens.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use vramscope_trace::{Recording, digest};

use super::{PATIENCE, whole_file};
use crate::load::Moment;
use crate::program::vramscope;

/// How often is looked whether it has come to its end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A running one. It ends when this is dropped.
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

    /// Waits until what it has written goes up to a moment.
    pub(super) fn wait_for(&self, moment: &Moment) -> Result<(), String> {
        wait("record is not where the program is", || {
            let mut written = Recording::passing_by(None);
            // The last chunk may be half written.
            fs::read(&self.path).is_ok_and(|bytes| written.push(&bytes).is_ok())
                && written.end_event() >= moment.events()
        })
    }

    /// Waits until it has ended by itself, as the recording has. Gives back the digest of the last state, and how many events are lost.
    pub(super) fn finish(mut self, moment: &Moment) -> Result<(u64, u64), String> {
        let child = &mut self.child;
        wait("record has not ended", || child.try_wait().is_ok_and(|status| status.is_some()))?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("record: {status}"));
        }
        let (recording, _) = whole_file(&self.path)?;
        moment.check(recording.end_state(), recording.definitions()).map_err(|error| format!("record: {error}"))?;
        let (events, lost_events) = (recording.events(), recording.lost_events());
        if (recording.first_event(), events + lost_events) != (0, moment.events()) {
            return Err(format!("record: {events} events from {}, {lost_events} lost", recording.first_event()));
        }
        Ok((digest(recording.end_state()), lost_events))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // It may have ended before; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        if Instant::now() > deadline {
            return Err(format!("{what} after {PATIENCE:?}"));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
