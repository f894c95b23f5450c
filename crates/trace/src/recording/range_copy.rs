//! Copies a part of a recording: the memory state at its start, and its events, annotations,
//! relabels and sites.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::recording_data::Recording;
use super::replay::Replay;
use crate::error::FormatError;
use crate::event::{Annotation, Event, EventKind, Relabel};
use crate::info::RecordingInfo;
use crate::memory_state::MemoryState;
use crate::sink::Sink;
use crate::site::{Definitions, Frame, FrameId, Interner, Site, SiteId, StackId, StringId};
use crate::sort::sort_by_key;

/// Copies the part of a recording between two moments to a [`Sink`], a chunk of events at a time.
///
/// The copy begins with a full state. Event numbers, times and states equal the original's; only
/// the definitions that the part uses are copied, under new numbers. The sink must keep the event
/// numbers of full states, as [`IndexedEncoder`](crate::IndexedEncoder) does.
///
/// ```
/// use vramscope_trace::{
///     DeviceId, Encoder, Event, EventKind, IndexedEncoder, RangeCopy, Recording, RecordingInfo, Sink,
/// };
///
/// let mut encoder = Encoder::new(&RecordingInfo::default());
/// for time_ns in 0..100 {
///     encoder.event(&Event { device: DeviceId(0), time_ns, kind: EventKind::Gap { lost: 1 } });
/// }
/// encoder.flush();
/// let mut recording = Recording::new();
/// for chunk in encoder.take_output() {
///     recording.push(&chunk.bytes)?;
/// }
///
/// let mut copy = RangeCopy::new(&recording, 20, 30);
/// let mut encoder = IndexedEncoder::new(&copy.begin(&recording)?);
/// while copy.step(&recording, &mut encoder)? {}
/// let mut part = Recording::new();
/// for bytes in encoder.finish() {
///     part.push(&bytes)?;
/// }
/// assert_eq!((part.first_event(), part.end_event(), part.end_ns()), (20, 30, 29));
/// # Ok::<(), vramscope_trace::FormatError>(())
/// ```
#[derive(Debug)]
pub struct RangeCopy {
    /// The first moment.
    start: u64,
    /// The last moment.
    end: u64,
    /// The moment up to which events have been copied.
    at: u64,
    /// The moment of the last full state that was copied; `None` before the first.
    state_at: Option<u64>,
    /// The annotations of the part that have not been copied, and its marks, by moment.
    annotations: VecDeque<Annotation>,
    definitions: DefinitionCopy,
    replay: Replay,
}

impl RangeCopy {
    /// Creates a copy of the part from the moment `from` to the moment `to`, limited to the moments
    /// that the recording has.
    #[must_use]
    pub fn new(recording: &Recording, from: u64, to: u64) -> Self {
        let (first, last) = (recording.first_event(), recording.end_event());
        let start = from.clamp(first, last);
        let end = to.clamp(start, last);
        // A mark at the last moment is an event after the part.
        let is_inside = |annotation: &&Annotation| {
            let at = annotation.at_event;
            at >= start && (at < end || end == last)
        };
        let mut annotations: Vec<Annotation> = recording.annotations().iter().filter(is_inside).copied().collect();
        sort_by_key(&mut annotations, |annotation| annotation.at_event);
        let (annotations, definitions, replay) = (annotations.into(), DefinitionCopy::default(), Replay::new());
        Self { start, end, at: start, state_at: None, annotations, definitions, replay }
    }

    /// Seeks to the start of the part and returns the metadata of the copy. To be called once,
    /// before [`step`](Self::step).
    ///
    /// # Errors
    /// If a chunk cannot be read: it was not [supplied](Recording::supply), or the file changed.
    pub fn begin(&mut self, recording: &Recording) -> Result<RecordingInfo, FormatError> {
        let state = self.replay.seek(recording, self.start)?;
        // If the start is in a gap, the state is from the last moment before the gap.
        (self.start, self.at) = (state.event(), state.event());
        let mut info = recording.info().clone();
        for device in &mut info.devices {
            let before = state.devices().find(|(id, _)| id.0 == device.device).map_or(0, |(_, device)| device.events);
            device.history_complete &= before == 0;
            device.uncertain_events = device.uncertain_events.saturating_sub(before);
        }
        Ok(info)
    }

    /// Returns the byte ranges of chunks that are not in memory and that [`begin`](Self::begin) or
    /// the next [`step`](Self::step) needs. Without a [`ReadAt`](crate::ReadAt), the caller must
    /// [`supply`](Recording::supply) them.
    #[must_use]
    pub fn missing(&self, recording: &Recording) -> Vec<Range<u64>> {
        match self.state_at {
            None => recording.missing(self.start),
            Some(_) if self.at < self.end => recording.missing_events(self.at, 0),
            Some(_) => recording.missing(self.end),
        }
    }

    /// Returns how many of the part's events have been copied, and how many it has.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        (self.at - self.start, self.end.saturating_sub(self.start))
    }

    /// Copies the next chunk of events to `sink`, preceded by the full state there if the events
    /// before do not lead to that state. Returns false once everything is copied.
    ///
    /// # Errors
    /// If a chunk cannot be read, see [`begin`](Self::begin). The copy can continue once the chunk
    /// is supplied.
    pub fn step(&mut self, recording: &Recording, sink: &mut impl Sink) -> Result<bool, FormatError> {
        let is_first = self.state_at.is_none();
        if is_first || (self.state_at != Some(self.at) && recording.has_correction_at(self.at)) {
            self.copy_state(recording, sink)?;
        }
        if self.at < self.end {
            let next = recording.next_event(self.at).map_or(self.end, |next| next.min(self.end));
            if next == self.at {
                return self.copy_events(recording, sink).map(|()| true);
            }
            // Events are missing up to the next full state.
            self.at = next;
            self.copy_state(recording, sink)?;
            return Ok(true);
        }
        while let Some(annotation) = self.annotations.pop_front() {
            self.definitions.annotation(&annotation, recording.definitions(), sink);
        }
        Ok(false)
    }

    /// Copies the full state at the current moment, unless it is the empty one at the beginning of
    /// a recording, or the moment is inside a gap.
    fn copy_state(&mut self, recording: &Recording, sink: &mut impl Sink) -> Result<(), FormatError> {
        let state = self.replay.seek(recording, self.at)?;
        self.state_at = Some(self.at);
        if state.event() == self.at && *state != MemoryState::default() {
            let state = self.definitions.state(state, recording.definitions(), sink);
            sink.replace_state(&state);
        }
        Ok(())
    }

    /// Copies the events from the current moment to the end of their chunk, and the annotations and
    /// relabels between them.
    fn copy_events(&mut self, recording: &Recording, sink: &mut impl Sink) -> Result<(), FormatError> {
        let Self { at, end, annotations, definitions, replay, .. } = self;
        let known = recording.definitions();
        // The index does not list marks.
        let lists_marks = recording.lists_marks();
        let Some((first, events, relabels)) = replay.load_entries(recording, *at)? else { return Ok(()) };
        let from = *at;
        let mut relabels = relabels.iter().filter(|(index, _)| *index >= from).peekable();
        for (index, event) in (first..*end).zip(events).skip((from - first) as usize) {
            while let Some((_, relabel)) = relabels.next_if(|(before, _)| *before == index) {
                definitions.relabel(relabel, known, sink);
            }
            let mut has_seen_mark = !lists_marks;
            while let Some(annotation) = annotations.pop_front_if(|annotation| annotation.at_event <= index) {
                // Marks are events, and are listed among the annotations, too.
                if !has_seen_mark && is_mark(event, &annotation) {
                    has_seen_mark = true;
                } else {
                    definitions.annotation(&annotation, known, sink);
                }
            }
            let event = definitions.event(event, known, sink);
            sink.event(&event);
            *at = index + 1;
        }
        Ok(())
    }
}

/// Returns true if `annotation` describes the mark `event`.
fn is_mark(event: &Event, annotation: &Annotation) -> bool {
    let EventKind::Mark { stage, name, .. } = event.kind else { return false };
    let described = (annotation.device, annotation.time_ns, annotation.stage, annotation.name);
    (event.device, event.time_ns, stage, name) == described
}

/// Copies definitions when they are used for the first time, and translates their numbers.
#[derive(Debug, Default)]
struct DefinitionCopy {
    interner: Interner,
    /// The new number of each site and stack that was used.
    sites: HashMap<SiteId, SiteId>,
    stacks: HashMap<StackId, StackId>,
}

impl DefinitionCopy {
    /// Passes the definitions that were used for the first time to `sink`.
    fn send(&mut self, sink: &mut impl Sink) {
        for definition in self.interner.take_new() {
            sink.define(&definition);
        }
    }

    /// Returns the number that a string of the original has in the copy, defining it there if
    /// needed.
    fn string(&mut self, id: StringId, known: &Definitions) -> StringId {
        self.interner.string(known.string(id))
    }

    /// Returns the number that a call stack of the original has in the copy, defining it there if
    /// needed.
    fn stack(&mut self, id: StackId, known: &Definitions) -> StackId {
        // From the innermost frame outwards, up to a stack that was used before.
        let (mut frames, mut outer) = (Vec::new(), id);
        let mut stack = loop {
            if let Some(&copied) = self.stacks.get(&outer) {
                break copied;
            }
            let Some(definition) = known.stack_definition(outer) else { break StackId(0) };
            frames.push((outer, definition.frame));
            outer = definition.caller;
        };
        for (id, frame) in frames.into_iter().rev() {
            let frame = known.frame(frame).map_or(FrameId(0), |frame| {
                let (function, file) = (self.string(frame.function, known), self.string(frame.file, known));
                self.interner.frame(Frame { function, file, line: frame.line })
            });
            stack = self.interner.stack(frame, stack);
            self.stacks.insert(id, stack);
        }
        stack
    }

    /// Returns the number that a site of the original has in the copy, defining it there if needed.
    fn site(&mut self, id: SiteId, known: &Definitions) -> SiteId {
        if let Some(&copied) = self.sites.get(&id) {
            return copied;
        }
        let site = known.site(id);
        let copied = Site {
            stack: self.stack(site.stack, known),
            scope: self.string(site.scope, known),
            category: site.category,
            compile_context: self.string(site.compile_context, known),
        };
        let copied = self.interner.site(copied);
        self.sites.insert(id, copied);
        copied
    }

    /// Returns an event with the numbers of sites and strings that the copy uses, after passing new
    /// definitions to `sink`.
    fn event(&mut self, event: &Event, known: &Definitions, sink: &mut impl Sink) -> Event {
        let mut event = *event;
        if let EventKind::Mark { name, .. } = &mut event.kind {
            *name = self.string(*name, known);
        }
        if let Some(site) = event.kind.site_mut() {
            *site = self.site(*site, known);
        }
        self.send(sink);
        event
    }

    /// Passes an annotation to `sink` with the number that its name has in the copy, after new
    /// definitions.
    fn annotation(&mut self, annotation: &Annotation, known: &Definitions, sink: &mut impl Sink) {
        let name = self.string(annotation.name, known);
        self.send(sink);
        sink.annotation(&Annotation { name, ..*annotation });
    }

    /// Passes a relabel to `sink` with the number that its site has in the copy, after new
    /// definitions.
    fn relabel(&mut self, relabel: &Relabel, known: &Definitions, sink: &mut impl Sink) {
        let site = self.site(relabel.site, known);
        self.send(sink);
        sink.relabel(&Relabel { site, ..*relabel });
    }

    /// Returns a memory state with the numbers of sites that the copy uses, after passing new
    /// definitions to `sink`.
    fn state(&mut self, state: &MemoryState, known: &Definitions, sink: &mut impl Sink) -> MemoryState {
        let mut copied = MemoryState { event: state.event, time_ns: state.time_ns, ..MemoryState::default() };
        for (&id, device) in &state.devices {
            // Computed before, because two closures need the numbers.
            let sites: HashMap<SiteId, SiteId> = (device.segments().map(|segment| segment.site))
                .chain(device.blocks().flat_map(|block| [block.site, device.allocation_site(block)]))
                .map(|site| (site, self.site(site, known)))
                .collect();
            let new = |site: SiteId| sites.get(&site).copied().unwrap_or_default();
            let device = device.with_remapped_ids(
                |segment| (new(segment.site), segment.since_event),
                |block| (new(block.site), block.since_event, block.since_ns),
            );
            copied.devices.insert(id, device);
        }
        self.send(sink);
        copied
    }
}
