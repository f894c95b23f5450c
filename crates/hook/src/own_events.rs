//! Checks the tracker by the program's own events between two snapshots.
//!
//! The state in a snapshot, after the events that the tracker reported since, must equal the state
//! in the next snapshot. So the check allocates no memory of its own: a request could fail on a
//! full GPU, empty the program's cache and call its observers, and would end the capture of a CUDA
//! graph in another thread.

use std::ops::RangeInclusive;

use vramscope_formats::{LiveDevice, LiveEntry, LiveSnapshot, TraceAction};
use vramscope_trace::{Block, DeviceId, DeviceState, Event, MemoryState, MempoolId, SiteId, StreamId};

use crate::reader::RawEvent;

/// An active block as both snapshots and events know it: address, requested bytes, stream, and the
/// private pool if this version of PyTorch reports it with an event.
type KnownBlock = (u64, u64, StreamId, Option<MempoolId>);

/// The parameters of a check: device, its memory size, and the times that events can have.
pub(crate) struct Expectation {
    pub(crate) device: DeviceId,
    /// True if this version of PyTorch reports private pools with events.
    pub(crate) has_mempools: bool,
    /// Size of the device's memory, in bytes.
    pub(crate) total_bytes: u64,
    /// The times that the events can have; see [`event_times`].
    pub(crate) times: RangeInclusive<u64>,
}

/// The result of a check that found no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    /// Index, among the events, of the second snapshot's event.
    pub(crate) entry: usize,
    /// True if at least one event confirms that every field is read correctly: its stream and
    /// private pool are those of the segment at its address, or it is a plausible out-of-memory
    /// event.
    pub(crate) is_confirmed: bool,
}

/// Maximum difference between the time-stamp counters of two processors, in ticks: about 0.3 ms.
const CLOCK_TOLERANCE: u64 = 1 << 20;

impl Expectation {
    /// Compares the state in the snapshot `first`, changed by `events`, with the state in the later
    /// snapshot `second`. `events` begin after the event of `first` and contain that of `second`.
    ///
    /// Returns the index of the event of `second`, and whether the events confirm every field.
    ///
    /// # Errors
    /// If the states differ, or an event contradicts the clock or the events before it.
    pub(crate) fn check(
        &self,
        first: &LiveSnapshot,
        second: &LiveSnapshot,
        events: &[RawEvent],
    ) -> Result<Checked, String> {
        let device = self.device;
        let (state, mut live) = device_of(first, device);
        let start = state.clone();
        let (after, _) = device_of(second, device);
        let expected = self.active_blocks(&after);
        let mut memory = MemoryState::default();
        *memory.device_mut(device) = state;
        let (mut changes, mut confirmations) = (0_u64, 0_u64);
        let mut is_equal = None;
        for (index, event) in events.iter().enumerate() {
            self.check_time(event)?;
            if event.is_own_snapshot() {
                let state = memory.device(device).cloned().unwrap_or_default();
                let has_equal_state = self.active_blocks(&state) == expected;
                is_equal = Some(has_equal_state.then_some(index));
                if has_equal_state {
                    break;
                }
            } else if let Some(entry) = event.live_entry(self.has_mempools) {
                let before = memory.device(device).and_then(|state| is_of_segment(state, &entry));
                if before == Some(false) {
                    let RawEvent { address, .. } = event;
                    return Err(format!(
                        "an event of {device} at {address:#x} has another stream or pool than its segment"
                    ));
                }
                // The address of a failed request is the device's free memory.
                let is_failure = entry.action == TraceAction::OutOfMemory && entry.address <= self.total_bytes;
                // Compared with segments of the snapshots, not with segments from events: a field
                // that is read wrongly would be wrong in all events.
                let of_snapshot = [&start, &after].map(|state| is_of_segment(state, &entry));
                let is_confirmed = is_failure || of_snapshot.contains(&Some(true));
                confirmations += u64::from(is_confirmed);
                let kind = live.apply(&entry, SiteId(0));
                memory.apply(&Event { device, time_ns: 0, kind });
                changes += 1;
            }
        }
        if live.contradictions() > 0 {
            let count = live.contradictions();
            return Err(format!("{count} of {changes} events of {device} contradict the events before them"));
        }
        match is_equal {
            Some(Some(entry)) => Ok(Checked { entry, is_confirmed: confirmations > 0 }),
            Some(None) => Err(format!("a snapshot of {device} differs from the state after {changes} events")),
            None => Err(format!("PyTorch did not report the snapshot of {device} to the tracker")),
        }
    }

    /// Checks that an event's time is between the readings of the clock.
    fn check_time(&self, event: &RawEvent) -> Result<(), String> {
        let (start, end) = (self.times.start(), self.times.end());
        let wrong =
            || format!("an event of {} has the time {}, not one from {start} to {end}", self.device, event.time);
        if self.times.contains(&event.time) { Ok(()) } else { Err(wrong()) }
    }

    /// Returns a device's active blocks in the order of their addresses.
    fn active_blocks(&self, state: &DeviceState) -> Vec<KnownBlock> {
        let known = |block: &Block| {
            let mempool = self.has_mempools.then_some(block.pool.owner);
            (block.address, block.requested, block.stream, mempool)
        };
        state.blocks().map(known).collect()
    }
}

/// Returns the times that events between two readings of the clock can have: any time if the clock
/// can be set meanwhile.
pub(crate) fn event_times(readings: RangeInclusive<u64>, can_be_set: bool) -> RangeInclusive<u64> {
    if can_be_set {
        return 0..=u64::MAX;
    }
    let (start, end) = readings.into_inner();
    start.saturating_sub(CLOCK_TOLERANCE)..=end.saturating_add(CLOCK_TOLERANCE)
}

/// Returns the state of a device in a snapshot; an empty state if the snapshot lacks the device,
/// because the device has no memory.
pub(crate) fn device_of(snapshot: &LiveSnapshot, device: DeviceId) -> (DeviceState, LiveDevice) {
    if snapshot.devices().contains(&device) {
        snapshot.device(device)
    } else {
        (DeviceState::default(), LiveDevice::empty(snapshot.settings(), device))
    }
}

/// Returns whether an entry has the stream and the private pool of the segment at its address;
/// `None` if a state has no segment there.
fn is_of_segment(state: &DeviceState, entry: &LiveEntry) -> Option<bool> {
    let segment = state.segment_at(entry.address).filter(|_| entry.action != TraceAction::OutOfMemory)?;
    let has_pool = entry.mempool.is_none_or(|pool| pool == segment.pool.owner);
    Some(has_pool && segment.stream == StreamId(entry.stream))
}

#[cfg(test)]
mod tests {
    use vramscope_formats::Limits;

    use super::*;
    use crate::record::OWN_SNAPSHOT;
    use crate::torch::actions;

    const SEGMENT: u64 = 0x7000_0000_0000;
    const STREAM: u64 = 9;

    /// Returns a snapshot of one segment with blocks: address in the segment, requested bytes.
    fn snapshot(blocks: &[(u64, u64)]) -> LiveSnapshot {
        let mut parts = Vec::new();
        let mut end = 0;
        for &(offset, requested) in blocks {
            if offset > end {
                parts.push(block(end, offset - end, 0, "inactive"));
            }
            end = offset + requested.next_multiple_of(512);
            parts.push(block(offset, end - offset, requested, "active_allocated"));
        }
        parts.push(block(end, (2 << 20) - end, 0, "inactive"));
        let segments = format!(
            r#"[{{"device":0,"address":{SEGMENT},"total_size":2097152,"allocated_size":0,"active_size":0,
            "requested_size":0,"stream":{STREAM},"segment_type":"small","segment_pool_id":[0,0],
            "is_expandable":false,"frames":[],"blocks":[{}]}}]"#,
            parts.join(",")
        );
        let text = format!(r#"{{"segments":{segments},"device_traces":[],"allocator_settings":{{}}}}"#);
        LiveSnapshot::read(text.as_bytes(), &Limits::default()).expect("the snapshot is valid")
    }

    fn block(offset: u64, size: u64, requested: u64, state: &str) -> String {
        format!(
            r#"{{"address":{},"size":{size},"requested_size":{requested},"state":"{state}","frames":[]}}"#,
            SEGMENT + offset
        )
    }

    fn event(action: u8, offset: u64, size: u64) -> RawEvent {
        let address = if action == actions::SNAPSHOT { OWN_SNAPSHOT } else { SEGMENT + offset };
        RawEvent::new(action, address, size, 5_000_000, [STREAM, 0, 0])
    }

    fn check(first: &LiveSnapshot, second: &LiveSnapshot, events: &[RawEvent]) -> Result<bool, String> {
        check_with_clock(false, first, second, events)
    }

    fn check_with_clock(
        can_be_set: bool,
        first: &LiveSnapshot,
        second: &LiveSnapshot,
        events: &[RawEvent],
    ) -> Result<bool, String> {
        let times = event_times(4_000_000..=6_000_000, can_be_set);
        let expectation = Expectation { device: DeviceId(0), has_mempools: true, total_bytes: 1 << 30, times };
        expectation.check(first, second, events).map(|checked| checked.is_confirmed)
    }

    /// Returns events of a block that stays allocated, of one that is freed, and of the snapshot.
    fn usual_events() -> Vec<RawEvent> {
        vec![
            event(actions::ALLOC, 1024, 700),
            event(actions::ALLOC, 2048, 100),
            event(actions::FREE_REQUESTED, 2048, 100),
            event(actions::FREE_COMPLETED, 2048, 100),
            event(actions::SNAPSHOT, 0, 0),
        ]
    }

    #[test]
    fn events_that_lead_to_the_second_snapshot_pass_the_check() {
        let (first, second) = (snapshot(&[(0, 1000)]), snapshot(&[(0, 1000), (1024, 700)]));
        assert_eq!(check(&first, &second, &usual_events()), Ok(true));
        let mut events = usual_events();
        let freed = [
            event(actions::FREE_REQUESTED, 0, 1000),
            event(actions::FREE_COMPLETED, 0, 1000),
            event(actions::SNAPSHOT, 0, 0),
        ];
        assert_eq!(check(&first, &snapshot(&[]), &freed), Ok(true), "frees only");
        let mut of_program = event(actions::SNAPSHOT, 0, 0);
        of_program.address = 0;
        events.insert(1, of_program);
        events.push(event(actions::ALLOC, 4096, 1));
        assert_eq!(check(&first, &second, &events), Ok(true), "the program took a snapshot and went on");
    }

    #[test]
    fn check_without_an_event_confirms_nothing() {
        let first = snapshot(&[(0, 1000)]);
        assert_eq!(check(&first, &first, &[event(actions::SNAPSHOT, 0, 0)]), Ok(false));
        let failure = |free| RawEvent::new(actions::OOM, free, 1000, 5_000_000, [STREAM, 0, 0]);
        for (free, is_possible) in [(1 << 20, true), (u64::MAX, false)] {
            let events = [failure(free), event(actions::SNAPSHOT, 0, 0)];
            assert_eq!(check(&first, &first, &events), Ok(is_possible), "a failure with {free} free bytes");
        }
    }

    #[test]
    fn wrong_fields_are_found() {
        let (first, second) = (snapshot(&[(0, 1000)]), snapshot(&[(0, 1000), (1024, 700)]));
        let check = |index: usize, change: fn(&mut RawEvent)| {
            let mut events = usual_events();
            change(&mut events[index]);
            check(&first, &second, &events).expect_err(&format!("event {index} is wrong: {:?}", events[index]))
        };
        // Changes an event of a block that stays, and of one that is freed.
        for index in [0, 1] {
            check(index, |event| event.address += 512);
            check(index, |event| event.action = actions::FREE_REQUESTED);
            for change in [|event: &mut RawEvent| event.time = 0, |event: &mut RawEvent| event.time = u64::MAX] {
                assert!(check(index, change).contains("has the time"));
            }
            check(index, |event| {
                *event = RawEvent::new(event.action, event.address, event.size, event.time, [7, 0, 0])
            });
            check(index, |event| {
                *event = RawEvent::new(event.action, event.address, event.size, event.time, [STREAM, 1, 2]);
            });
        }
        assert!(check(0, |event| event.size += 1).contains("differs from the state after 4 events"));
    }

    #[test]
    fn clock_that_was_set_is_no_error() {
        let (first, second) = (snapshot(&[(0, 1000)]), snapshot(&[(0, 1000), (1024, 700)]));
        for time in [1, 5_000_000, u64::MAX] {
            let mut events = usual_events();
            events.iter_mut().for_each(|event| event.time = time);
            assert_eq!(check_with_clock(true, &first, &second, &events), Ok(true));
            events[0].size += 1;
            let error = check_with_clock(true, &first, &second, &events).expect_err("a size is wrong");
            assert!(error.contains("differs from the state"), "{error}");
        }
    }

    #[test]
    fn snapshot_that_is_not_reported_is_an_error() {
        let first = snapshot(&[]);
        let error = check(&first, &first, &[]).expect_err("no entry of the snapshot");
        assert!(error.contains("did not report the snapshot"), "{error}");
    }
}
