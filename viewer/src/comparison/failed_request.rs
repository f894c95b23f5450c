//! A request that failed in the recording, and its memory in a simulated run.

use vramscope_trace::{DeviceId, EventKind, Incident, IncidentKind, Recording, Replay};

use crate::view::Context;

/// Number of events of the run, at most, that are read to find the memory of one request. Mapping a
/// large expandable segment and freeing cached segments precede it.
const EVENTS_OF_REQUEST: u64 = 4096;

/// A request that failed at side A's moment, and that the simulated run at side B made, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// Requested size in bytes, after rounding.
    pub requested: u64,
    /// Address and size in bytes of the memory that served it in the run; `None` if it failed, too.
    pub memory: Option<(u64, u64)>,
}

impl FailedRequest {
    /// Returns the request that failed at side A's moment, the one on the screen; `None` if no
    /// request failed then. `devices` are those of A and B, `event` is B's moment, and `replay`
    /// reads the events of `run`.
    pub(super) fn find(
        context: &Context<'_>,
        devices: [DeviceId; 2],
        (run, event, replay): (&Recording, u64, &mut Replay),
    ) -> Option<Self> {
        let failed = |recording: &Recording, device: DeviceId, is_now: &dyn Fn(&Incident) -> bool| {
            let mut now = recording.incidents().iter().filter(|one| one.device == device && is_now(one));
            now.find_map(|one| match one.kind {
                IncidentKind::OutOfMemory { requested } => Some(requested),
                IncidentKind::Gap { .. } => None,
            })
        };
        // The failure's own event is the last one before the moment. The run has the recording's
        // times.
        let is_last = |one: &Incident| one.at_event.saturating_add(1) == context.moment;
        let requested = failed(context.recording, devices[0], &is_last)?;
        if failed(run, devices[1], &|one| one.time_ns == context.time_ns).is_some() {
            return Some(Self { requested, memory: None });
        }
        // The run frees the memory at once, because the program never got it.
        for index in (event.saturating_sub(EVENTS_OF_REQUEST)..event).rev() {
            let event = replay.event(run, index).ok()??;
            match event.kind {
                _ if event.time_ns != context.time_ns => break,
                EventKind::BlockAllocated { address, size, requested: bytes, .. }
                    if event.device == devices[1] && bytes == requested =>
                {
                    return Some(Self { requested, memory: Some((address, size)) });
                }
                _ => {}
            }
        }
        None
    }
}
