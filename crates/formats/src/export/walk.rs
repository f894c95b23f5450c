//! Walks over the events of a recording, with the memory state at each.

use vramscope_trace::{Event, FormatError, MemoryState, Recording, Relabel, Replay};

use super::error::Progress;

/// Number of events between two calls of the caller's progress callback.
const PROGRESS_EVENTS: u64 = 1 << 16;

/// Calls `visit` with every event in order: the memory state before the event, the event's index
/// (from 0), and the event.
///
/// Missing events are skipped: the state after them is the full state that follows. Memory is
/// bounded by one state and one chunk.
///
/// ```
/// use vramscope_formats::export;
///
/// # let mut encoder = vramscope_trace::Encoder::new(&vramscope_trace::RecordingInfo::default());
/// # encoder.flush();
/// # let mut recording = vramscope_trace::Recording::new();
/// # for chunk in encoder.take_output() {
/// #     recording.push(&chunk.bytes).unwrap();
/// # }
/// let mut events = 0;
/// let count = |_before: &_, _index, _event: &_| {
///     events += 1;
///     Ok::<_, vramscope_trace::FormatError>(())
/// };
/// export::for_each_event(&recording, &mut |_done, _total| {}, count).unwrap();
/// assert_eq!(events, recording.events());
/// ```
///
/// # Errors
/// If a chunk cannot be read, and any error of `visit`.
pub fn for_each_event<E: From<FormatError>>(
    recording: &Recording,
    progress: Progress<'_>,
    mut visit: impl FnMut(&MemoryState, u64, &Event) -> Result<(), E>,
) -> Result<(), E> {
    for_each_event_and_relabels(recording, progress, |before, index, event, _| visit(before, index, event))
}

/// Calls `visit` with every event, as [`for_each_event`] does, and with the relabels that take
/// effect with the event. The state before the event contains them.
pub(crate) fn for_each_event_and_relabels<E: From<FormatError>>(
    recording: &Recording,
    progress: Progress<'_>,
    mut visit: impl FnMut(&MemoryState, u64, &Event, &[Relabel]) -> Result<(), E>,
) -> Result<(), E> {
    let mut relabels = Vec::new();
    let total = recording.events();
    let mut replay = Replay::new();
    // Applies each event itself, because even a short seek decodes a large part of a chunk.
    let mut state = MemoryState::default();
    let mut index = recording.first_event();
    let mut done = 0;
    while let Some(next) = recording.next_event(index) {
        let Some(event) = replay.event(recording, next)? else {
            index = next + 1;
            continue;
        };
        if done == 0 || next != index || recording.has_correction_at(next) {
            state = replay.seek(recording, next)?.clone();
        }
        relabels.clear();
        relabels.extend(replay.relabels_before(recording, next)?);
        relabels.iter().for_each(|relabel| state.relabel(relabel));
        visit(&state, next, &event, &relabels)?;
        state.apply(&event);
        index = next + 1;
        done += 1;
        if done % PROGRESS_EVENTS == 0 {
            progress(done, total);
        }
    }
    progress(total, total);
    Ok(())
}
