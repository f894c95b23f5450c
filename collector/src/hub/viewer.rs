//! A read position in the hub's recording.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use vramscope_trace::Chunk;

use super::file_reader::FileReader;
use super::history::{ChunkEntry, History, end_event};
use super::position::{self, StreamPosition, ViewFrom};
use super::state::Hub;

/// The result of [`Viewer::take`]: chunks, how many events were skipped before them, and where to
/// resume after them.
#[derive(Clone, Debug, Default)]
pub struct ViewerChunks {
    /// The next chunks; empty if the hub has no further chunk yet or the viewer has
    /// [failed](Viewer::failure).
    pub chunks: Vec<Arc<Chunk>>,
    /// Number of events skipped before them, because the viewer was too slow or disconnected for
    /// too long.
    pub missed_events: u64,
    /// Position to [resume](Hub::resume) from after these chunks.
    pub next: u64,
}

/// A read position in the recording of a [`Hub`]. Each viewer reads at its own pace.
#[derive(Debug)]
pub struct Viewer {
    hub: Hub,
    _registration: Registration,
    begin: ViewFrom,
    is_resumed: bool,
    /// True once the first chunk has been chosen.
    has_begun: bool,
    /// Number of the chunk from which the viewer last skipped.
    before_skip: u64,
    /// Whether the full state to which it skips has not been taken yet.
    is_skipping: bool,
    /// The viewer has all definitions before this chunk number.
    defined: u64,
    /// Number of the next chunk, once all definitions before it have been taken.
    next: u64,
    /// The last event taken.
    end_event: Option<u64>,
    /// Events skipped before the next chunk.
    missed: u64,
    /// Smallest lag so far, in bytes.
    least_lag: u64,
    /// The reader of the file, until the viewer has switched to the hub's chunks.
    file_reader: Option<FileReader>,
    /// Why the file cannot be read.
    failure: Option<io::Error>,
}

impl Viewer {
    /// Returns true if the viewer continues at the position passed to [`Hub::resume`], even if it
    /// must skip dropped events. False if it comes from [`Hub::viewer`], or if the position belongs
    /// to another recording or cannot be found: the viewer then starts anew.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// Returns how far this viewer has read: the [`StreamPosition::next`] from which a later viewer
    /// can [resume](Hub::resume) after all chunks taken so far; 0 if none was taken.
    #[must_use]
    pub fn next(&self) -> u64 {
        if let Some(file_reader) = &self.file_reader {
            return file_reader.next();
        }
        // Definitions alone are no progress: the chunks that use them are still missing, and the
        // skipped events count as missing once the full state has been taken.
        if self.is_skipping { self.before_skip } else { self.next }
    }

    /// Returns true while [`take`](Self::take) reads from the recording's file, false once it takes
    /// chunks from the hub's memory.
    #[must_use]
    pub fn reads_file(&self) -> bool {
        self.file_reader.is_some()
    }

    /// Returns why the viewer has stopped: the recording's file cannot be read. `None` while it
    /// works. A new viewer gets the history in memory instead.
    #[must_use]
    pub fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// Takes the next chunks: as many as fit in `max_bytes` in total, but at least one if one is
    /// available. May wait for the disk while the viewer [reads from a file](Self::reads_file).
    pub fn take(&mut self, max_bytes: usize) -> ViewerChunks {
        if let Some(file_reader) = &mut self.file_reader {
            match file_reader.take(&self.hub, max_bytes) {
                Ok(chunks) if chunks.is_empty() => self.finish_file(),
                Ok(chunks) => {
                    self.end_event = chunks.iter().rev().find_map(|chunk| end_event(chunk)).or(self.end_event);
                    return ViewerChunks { chunks, missed_events: 0, next: self.next() };
                }
                Err(error) => {
                    let is_new = file_reader.next() == 0;
                    self.hub.drop_file();
                    if is_new {
                        self.file_reader = None;
                        return self.take_from_hub(max_bytes);
                    }
                    self.failure = Some(error);
                    return ViewerChunks { next: self.next(), ..ViewerChunks::default() };
                }
            }
        }
        self.take_from_hub(max_bytes)
    }

    /// Switches from the file, of which the viewer has read all it needs, to the hub's chunks.
    fn finish_file(&mut self) {
        if let Some(file_reader) = self.file_reader.take() {
            let next = file_reader.next_hub_chunk();
            (self.is_skipping, self.defined, self.next, self.has_begun) = (false, next, next, true);
            // A viewer that resumed inside the file has taken no event yet.
            self.end_event = self.end_event.or(self.hub.0.lock().event_after(next));
        }
    }

    /// Takes the next chunks from the hub's memory: as many as fit in `max_bytes` in total, but at
    /// least one if one is available.
    fn take_from_hub(&mut self, max_bytes: usize) -> ViewerChunks {
        let shared = Arc::clone(&self.hub.0);
        let history = shared.lock();
        self.choose_next(&history);
        let (mut taken, mut bytes) = (ViewerChunks::default(), 0);
        while let Some(entry) = self.upcoming(&history) {
            bytes += entry.chunk.bytes.len();
            if bytes > max_bytes && !taken.chunks.is_empty() {
                break;
            }
            taken.chunks.push(Arc::clone(&entry.chunk));
            if self.defined < self.next {
                self.defined = entry.number + 1;
                continue;
            }
            self.next += 1;
            (self.is_skipping, self.defined) = (false, self.next);
            self.end_event = end_event(&entry.chunk).or(self.end_event);
            taken.missed_events += std::mem::take(&mut self.missed);
        }
        drop(history);
        self.hub.add_missed(taken.missed_events);
        taken.next = self.next();
        taken
    }

    /// Returns the next chunk without taking it; `None` if it is not published yet.
    fn upcoming<'a>(&mut self, history: &'a History) -> Option<&'a ChunkEntry> {
        if self.defined < self.next {
            let definitions = history.permanent_from(self.defined).next().filter(|entry| entry.number < self.next);
            if definitions.is_some() {
                return definitions;
            }
            self.defined = self.next;
        }
        history.chunks_from(self.next).next()
    }

    /// Chooses the chunk that the viewer takes next, and counts the events that it skips. A viewer
    /// skips chunks when it begins, when its next chunk was dropped, and when it is too slow.
    fn choose_next(&mut self, history: &History) {
        let is_new = self.end_event.is_none() && !self.is_resumed;
        let target = if !self.has_begun {
            (history.end > 0).then(|| history.begin(self.begin))
        } else if self.next < history.first() {
            // A new viewer gets the beginning it requested, any other the newest full state.
            Some(if is_new { history.begin(self.begin) } else { history.begin(ViewFrom::Newest) })
        } else if self.defined == self.next {
            let lag = history.lag(self.next);
            self.least_lag = self.least_lag.min(lag);
            let is_too_slow = lag - self.least_lag > self.hub.0.limits.lag_bytes;
            history.newest_state().filter(|&state| is_too_slow && state > self.next)
        } else {
            None
        };
        let Some(target) = target else { return };
        if !self.is_skipping {
            (self.is_skipping, self.before_skip) = (true, self.next);
        }
        (self.has_begun, self.next, self.least_lag) = (true, target, u64::MAX);
        self.missed = self.events_until(target, history);
    }

    /// Returns how many events lie between the last one taken and the full state in chunk number
    /// `target`.
    fn events_until(&self, target: u64, history: &History) -> u64 {
        let moment = history.chunks_from(target).next().and_then(|entry| end_event(&entry.chunk));
        moment.zip(self.end_event).map_or(0, |(moment, last_taken)| moment.saturating_sub(last_taken))
    }

    /// Goes back to the newest full state that the viewer has taken: the next chunks are the
    /// header, all definitions, that full state and all chunks after it. If the viewer has taken
    /// no full state yet, it goes back to the recording's beginning.
    ///
    /// If that state has been dropped, or the viewer still [reads from a file](Self::reads_file),
    /// the viewer continues at the newest full state and counts the skipped events. A restart has
    /// no effect on a viewer that has taken nothing.
    pub fn restart(&mut self) {
        if !self.has_begun && self.file_reader.is_none() {
            return;
        }
        let shared = Arc::clone(&self.hub.0);
        let history = shared.lock();
        let begin = history.begin_before(self.next).unwrap_or_else(|| history.begin(ViewFrom::Newest));
        self.file_reader = None;
        // Definitions alone are no progress, and the chunks after the state are repeated.
        (self.is_skipping, self.before_skip, self.defined, self.next) = (true, begin, 0, begin);
        (self.has_begun, self.least_lag) = (history.end > 0, u64::MAX);
        self.missed = self.events_until(begin, &history);
    }

    /// Waits until there is something to take (returns true), or everything has been taken and
    /// nothing more will come (returns false).
    pub async fn wait(&mut self) -> bool {
        match self.has_more() {
            Some(has_more) => has_more,
            None => self.hub.0.published.wait(self.next).await,
        }
    }

    /// Like [`wait`](Self::wait), but blocks the thread, for at most `timeout`. Returns `None` if
    /// the time is over and more may still come.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<bool> {
        self.has_more().or_else(|| self.hub.0.published.wait_timeout(self.next, timeout))
    }

    /// Returns true if there is something to take and false if the viewer has failed. `None` means
    /// that the caller must check whether the hub has published more chunks.
    fn has_more(&self) -> Option<bool> {
        if self.failure.is_some() {
            return Some(false);
        }
        (self.reads_file() || self.defined < self.next).then_some(true)
    }
}

impl Hub {
    /// Creates a viewer that begins at `begin`. It receives the header and all definitions first.
    #[must_use]
    pub fn viewer(&self, begin: ViewFrom) -> Viewer {
        self.0.viewers.fetch_add(1, Ordering::Relaxed);
        let file_reader = if begin == ViewFrom::Oldest { FileReader::from(self, 0) } else { None };
        Viewer {
            hub: self.clone(),
            _registration: Registration(self.clone()),
            begin,
            is_resumed: false,
            has_begun: false,
            before_skip: 0,
            is_skipping: false,
            defined: 0,
            next: 0,
            end_event: None,
            missed: 0,
            least_lag: u64::MAX,
            file_reader,
            failure: None,
        }
    }

    /// Creates a viewer that continues after `position`.
    ///
    /// If `position` belongs to another recording, the viewer begins at `otherwise`. If the next
    /// chunks have been dropped, it continues at the newest full state and reports how many events
    /// it missed.
    #[must_use]
    pub fn resume(&self, position: StreamPosition, otherwise: ViewFrom) -> Viewer {
        let mut viewer = self.viewer(otherwise);
        let StreamPosition { recording, next } = position;
        if recording != self.identity() {
            return viewer;
        }
        if let Some(file_reader) = position::to_file_offset(next).and_then(|at| FileReader::from(self, at)) {
            return Viewer { is_resumed: true, file_reader: Some(file_reader), ..viewer };
        }
        let history = self.0.lock();
        if (1..=history.end).contains(&next) {
            (viewer.defined, viewer.next) = (next, next);
            (viewer.is_resumed, viewer.has_begun, viewer.file_reader) = (true, true, None);
            viewer.end_event = history.event_after(next);
        }
        drop(history);
        viewer
    }
}

/// Keeps a viewer counted in [`Hub::viewers`] until dropped.
#[derive(Debug)]
struct Registration(Hub);

impl Drop for Registration {
    fn drop(&mut self) {
        self.0.0.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}
