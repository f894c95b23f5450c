//! A property test: each viewer receives all events, or the number of events it missed.

use proptest::prelude::*;
use vramscope_trace::{ChunkKind, Decoder, Recording, digest};

use super::testing::TestProgram;
use super::*;

/// One step of a random test of hub and viewers.
#[derive(Clone, Debug)]
enum Action {
    /// This many allocations are recorded, with the frees of older ones.
    Run(u64),
    /// A full state is recorded.
    State,
    /// This many events are lost for all viewers.
    Gap(u64),
    /// Hub and file end a chunk at the same event. False if the file is not yet written up to it.
    Cut(bool),
    /// The file ends before the recording.
    LoseFile,
    /// A new client connects.
    Join(ViewFrom),
    /// The client with this number takes at most this many bytes of chunks. A client's number is
    /// taken modulo the number of clients.
    Take(usize, usize),
    /// A client takes all chunks and is checked.
    TakeAll(usize),
    /// A client loses its connection while receiving, and resumes.
    Break(usize, ViewFrom),
    /// A client disconnects for good.
    Leave(usize),
}

/// Returns a proptest strategy that generates where a viewer begins.
fn any_begin() -> impl Strategy<Value = ViewFrom> {
    prop_oneof![Just(ViewFrom::Newest), (0u64..60_000).prop_map(ViewFrom::Recent), Just(ViewFrom::Oldest)]
}

/// Returns a proptest strategy that generates one step of the test.
fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        6 => (1u64..1500).prop_map(Action::Run),
        3 => Just(Action::State),
        1 => (1u64..100).prop_map(Action::Gap),
        4 => any::<bool>().prop_map(Action::Cut),
        1 => Just(Action::LoseFile),
        3 => any_begin().prop_map(Action::Join),
        8 => (any::<usize>(), 0usize..20_000).prop_map(|(client, bytes)| Action::Take(client, bytes)),
        3 => any::<usize>().prop_map(Action::TakeAll),
        3 => (any::<usize>(), any_begin()).prop_map(|(client, begin)| Action::Break(client, begin)),
        1 => any::<usize>().prop_map(Action::Leave),
    ]
}

/// A simulated client of the hub: its viewer, and the recording that it has received so far.
struct Client {
    viewer: Viewer,
    recording: Recording,
    bytes: Vec<u8>,
    next: u64,
    missed: u64,
    /// Events lost for all viewers.
    gaps: u64,
    /// True once it has received an event or a state.
    has_begun: bool,
}

impl Client {
    fn new(viewer: Viewer) -> Self {
        let (recording, bytes) = (Recording::new(), Vec::new());
        Self { viewer, recording, bytes, next: 0, missed: 0, gaps: 0, has_begun: false }
    }

    /// Takes at most `max_bytes` (or one larger chunk) from the hub's viewer and appends it to the
    /// client's recording. Returns false if the viewer had no chunk. `source` tells which gaps are
    /// in the recording itself.
    fn receive(&mut self, source: &TestProgram, max_bytes: usize) -> bool {
        let taken = self.viewer.take(max_bytes);
        let size: usize = taken.chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        assert!(size <= max_bytes || taken.chunks.len() == 1, "{size} of {max_bytes} bytes");
        assert!(self.viewer.failure().is_none(), "{:?}", self.viewer.failure());
        // A viewer skips to a full state; a gap just before that state counts as skipped.
        let mut has_skipped = taken.missed_events > 0;
        // A recording without an event begins with the next full state, so no event is missing.
        self.missed += if self.has_begun { taken.missed_events } else { 0 };
        for chunk in &taken.chunks {
            let end_event = self.recording.end_event();
            let is_gap = source.gaps.contains(&(end_event, chunk.first_event.saturating_sub(end_event)));
            if chunk.kind == ChunkKind::State && !std::mem::take(&mut has_skipped) && is_gap && self.has_begun {
                self.gaps += chunk.first_event - end_event;
            }
            self.has_begun |= matches!(chunk.kind, ChunkKind::State | ChunkKind::Events);
            self.recording.push(&chunk.bytes).expect("a viewer receives a valid recording");
            self.bytes.extend_from_slice(&chunk.bytes);
        }
        self.next = taken.next;
        !taken.chunks.is_empty()
    }

    /// Loses chunks in transit, then resumes after the last received chunk. Starts an empty
    /// recording at `begin` if the hub cannot resume there.
    fn reconnect(&mut self, hub: &Hub, begin: ViewFrom) {
        // The hub sends these chunks, but the client never receives them.
        self.viewer.take(5000);
        let viewer = hub.resume(StreamPosition { recording: hub.identity(), next: self.next }, begin);
        if viewer.is_resumed() {
            assert_eq!(viewer.next(), self.next);
            self.viewer = viewer;
        } else {
            *self = Self::new(viewer);
        }
    }

    /// Asserts that the client ends in the state of `source` and has counted every event that it
    /// lacks.
    fn check(&self, source: &TestProgram) {
        let recording = &self.recording;
        assert_eq!(recording.end_event(), source.encoder.state().event());
        assert_eq!(digest(recording.end_state()), digest(source.encoder.state()));
        recording.finish().expect("the recording has whole chunks");
        assert_eq!(recording.lost_events(), self.missed + self.gaps, "number of missing events");
        let mut decoder = Decoder::new();
        decoder.push(&self.bytes);
        while decoder.next_item().expect("a valid recording").is_some() {}
        decoder.finish().expect("the recording has whole chunks");
    }
}

/// Runs `actions` and asserts that every viewer receives all events or counts the missing ones.
/// `has_file`: the recording also goes to a file.
#[track_caller]
fn check(actions: &[Action], limits: HubLimits, has_file: bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("a.vram");
    let mut source = if has_file { TestProgram::with_file(limits, &path) } else { TestProgram::new(limits) };
    source.cut(true);
    let mut clients: Vec<Client> = Vec::new();
    for action in actions {
        let count = clients.len();
        let of = |client: usize| (count > 0).then(|| client % count.max(1));
        match *action {
            Action::Run(events) => source.run(events),
            Action::State => source.replace_state(),
            Action::Gap(events) => source.gap(events),
            Action::Cut(is_written) => source.cut(is_written),
            Action::LoseFile => source.lose_file(),
            Action::Join(begin) => clients.push(Client::new(source.hub.viewer(begin))),
            Action::Take(client, bytes) => {
                of(client).map(|client| clients[client].receive(&source, bytes));
            }
            Action::TakeAll(client) => {
                if let Some(client) = of(client) {
                    while clients[client].receive(&source, 10_000) {}
                    clients[client].check(&source);
                }
            }
            Action::Break(client, begin) => {
                if let Some(client) = of(client) {
                    clients[client].reconnect(&source.hub, begin);
                }
            }
            Action::Leave(client) => {
                of(client).map(|client| clients.swap_remove(client));
            }
        }
        assert_eq!(source.hub.viewers(), clients.len());
    }
    for client in &mut clients {
        while client.receive(&source, 10_000) {}
        client.check(&source);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_viewer_sees_all_events_or_counts_the_missing(
        actions in prop::collection::vec(any_action(), 1..60),
        history_bytes in 1000u64..200_000,
        lag_bytes in 1000u64..100_000,
        has_file in any::<bool>(),
    ) {
        check(&actions, HubLimits { history_bytes, lag_bytes }, has_file);
    }
}
