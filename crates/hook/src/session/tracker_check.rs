//! The check of the tracker by the program's own events.

use std::sync::atomic::{AtomicBool, Ordering};

use vramscope_trace::DeviceId;

use super::{NOT_FOLLOWING, Session, SessionState, lock, read_snapshot};
use crate::notes::{CLOCK_CAN_BE_SET, time_stamp};
use crate::own_events::{Expectation, event_times};
use crate::reader::RawEvent;
use crate::torch::actions;

/// True once the tracker of this process is known to report correctly.
static IS_TRACKER_CHECKED: AtomicBool = AtomicBool::new(false);

impl Session {
    /// Returns true if the tracker is known to report correctly, also if an earlier session found
    /// this out, or if this session has passed its last check.
    pub(crate) fn is_tracker_checked(&self) -> bool {
        IS_TRACKER_CHECKED.load(Ordering::Relaxed) || self.is_checked.load(Ordering::Relaxed)
    }

    /// Returns true if the program has used memory since the first snapshot and the tracker has not
    /// been checked yet.
    pub(crate) fn has_events_to_check(&self) -> Result<bool, String> {
        let state = lock(&self.state);
        if state.first_snapshot.is_none() {
            return Ok(false);
        }
        let follower = state.follower.as_ref().ok_or(NOT_FOLLOWING)?;
        follower.has_held_events()
    }

    /// Checks the program's own events between the first snapshot and this one. Returns true if the
    /// check passes; events are then recorded. Returns false if the events do not confirm every
    /// field yet; with `is_last`, because no other events will follow, the check passes
    /// nevertheless. Returns `None` if events were lost, so that another first snapshot is needed.
    pub(crate) fn check_events(&self, snapshot: &[u8], is_last: bool) -> Result<Option<bool>, String> {
        let second = read_snapshot(snapshot)?;
        let mut state = lock(&self.state);
        let first = state.first_snapshot.as_ref().ok_or("the session has no first snapshot")?;
        let follower = state.follower.as_ref().ok_or(NOT_FOLLOWING)?;
        let mut is_checked = false;
        for (device, info) in state.device_ids().zip(&state.devices) {
            let mut events = follower.held_events(device)?;
            let entry = events.iter().position(RawEvent::is_own_snapshot);
            let start = entry.filter(|_| state.recording.is_none()).map_or(0, |entry| entry + 1);
            events.drain(..start);
            let times = event_times(state.attached_at..=time_stamp(), CLOCK_CAN_BE_SET);
            let expectation =
                Expectation { device, has_mempools: state.has_mempools, total_bytes: info.total_bytes, times };
            let result = expectation.check(first, &second, &events);
            // Checked only after the ring has been read, because events can be lost until then.
            if follower.needs_snapshot()? {
                return Ok(None);
            }
            let checked = result.map_err(|reason| format!("the self-test failed: {reason}"))?;
            is_checked |= checked.is_confirmed;
            // The snapshot of the check is not recorded: it is no snapshot of the program.
            follower.leave_out(device, start + checked.entry)?;
        }
        if is_checked {
            IS_TRACKER_CHECKED.store(true, Ordering::Relaxed);
        }
        if is_checked || is_last {
            self.end_check(&mut state)?;
        }
        Ok(Some(is_checked || is_last))
    }

    /// Ends the check of the tracker, and records the held events.
    fn end_check(&self, state: &mut SessionState) -> Result<(), String> {
        state.follower.as_ref().ok_or(NOT_FOLLOWING)?.hold_events(false)?;
        self.is_checked.store(true, Ordering::Relaxed);
        if state.recording.is_some() {
            state.first_snapshot = None;
        }
        Ok(())
    }

    /// Checks that the tracker reported a failed request on `device` that needed a segment of
    /// `bytes` bytes. A program whose first requests fail is checked in this way instead of by
    /// [`check_events`](Self::check_events). Events are then recorded.
    pub(crate) fn check_failure(&self, device: u16, bytes: u64) -> Result<(), String> {
        let mut state = lock(&self.state);
        let follower = state.follower.as_ref().ok_or(NOT_FOLLOWING)?;
        let times = event_times(state.attached_at..=time_stamp(), CLOCK_CAN_BE_SET);
        let is_failure = |event: &RawEvent| {
            event.action == actions::OOM && (1..=bytes).contains(&event.size) && times.contains(&event.time)
        };
        if !follower.held_events(DeviceId(device))?.iter().any(is_failure) {
            return Err(format!("PyTorch did not report that {bytes} bytes could not be allocated"));
        }
        // The check counts for this session only, because a failed request has no stream or pool to
        // check.
        self.end_check(&mut state)
    }
}
