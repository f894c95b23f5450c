//! Someone who watches.

use std::io;
use std::sync::Arc;

use tokio::sync::watch;
use vramscope_trace::Chunk;

use super::history::{Entry, History, end_event};
use super::reading::Reading;
use super::{Hub, Position, Tip, position};

/// Where a newcomer begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// With the newest full state.
    #[default]
    Newest,
    /// With so many bytes of the newest chunks that are held, whole from a full state on; with everything that is held, if that is less.
    Recent(u64),
    /// With the recording's first event, from its file where it is written to one; without a file with everything that is held.
    Oldest,
}

/// What a viewer is given at once.
#[derive(Clone, Debug, Default)]
pub struct Taken {
    /// The next chunks.
    pub chunks: Vec<Arc<Chunk>>,
    /// How many events were left out before them, because the viewer was too slow or away for too long.
    pub missed: u64,
    /// What to [resume](Hub::resume) with, once these have been taken.
    pub next: u64,
}

/// A reader of a [`Hub`] at its own pace.
#[derive(Debug)]
pub struct Viewer {
    hub: Hub,
    tip: watch::Receiver<Tip>,
    begin: Begin,
    is_resumed: bool,
    /// Whether it was decided where a newcomer begins.
    has_begun: bool,
    /// How many chunks came before what it had when it was last moved on.
    had: u64,
    /// It has all definitions from before this chunk.
    defined: u64,
    /// The number of the next chunk, once it has all definitions before it.
    next: u64,
    /// The moment after what it was given, if it was given any.
    end_event: Option<u64>,
    /// Events that were left out before what it is given next.
    missed: u64,
    /// The least number of bytes that it was ever behind.
    least_lag: u64,
    /// The file, as long as it is given what stands there.
    reading: Option<Reading>,
    failure: Option<io::Error>,
}

impl Viewer {
    pub(super) fn new(hub: &Hub, begin: Begin) -> Self {
        let reading = if begin == Begin::Oldest { Reading::from(hub, 0) } else { None };
        Self {
            hub: hub.clone(),
            tip: hub.0.tip.subscribe(),
            begin,
            is_resumed: false,
            has_begun: false,
            had: 0,
            defined: 0,
            next: 0,
            end_event: None,
            missed: 0,
            least_lag: u64::MAX,
            reading,
            failure: None,
        }
    }

    pub(super) fn resume(hub: &Hub, at: Position, or: Begin) -> Self {
        let mut viewer = Self::new(hub, or);
        if at.recording == hub.identity()
            && let Some(reading) = position::in_file(at.next).and_then(|at| Reading::from(hub, at))
        {
            return Self { is_resumed: true, reading: Some(reading), ..viewer };
        }
        let history = hub.0.lock();
        if at.recording == hub.identity() && (1..=history.end).contains(&at.next) {
            (viewer.had, viewer.defined, viewer.next) = (at.next, at.next, at.next);
            (viewer.is_resumed, viewer.has_begun, viewer.reading) = (true, true, None);
            viewer.end_event = history.event_after(at.next);
        }
        drop(history);
        viewer
    }

    /// Whether it goes on where somebody was before.
    #[must_use]
    pub fn is_resumed(&self) -> bool {
        self.is_resumed
    }

    /// What to [resume](Hub::resume) with after everything that was taken so far; 0 is where nothing is to be had yet.
    #[must_use]
    pub fn next(&self) -> u64 {
        if let Some(reading) = &self.reading {
            return reading.next();
        }
        // Who has some of the definitions and not yet what they are for has gained nothing.
        if self.defined < self.next { self.had } else { self.next }
    }

    /// Whether [`take`](Self::take) reads from a file.
    #[must_use]
    pub fn reads_file(&self) -> bool {
        self.reading.is_some()
    }

    /// Why it was given nothing more, where the recording's file cannot be read any further. A newcomer is given what is held then.
    #[must_use]
    pub fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// The next chunks: at least one if there is any, and then as many as `max_bytes` has room for. As long as it
    /// [reads from a file](Self::reads_file) this may wait for a disk.
    pub fn take(&mut self, max_bytes: usize) -> Taken {
        if let Some(reading) = &mut self.reading {
            match reading.take(&self.hub, max_bytes) {
                Ok(chunks) if chunks.is_empty() => self.leave_file(),
                Ok(chunks) => {
                    self.end_event = chunks.iter().rev().find_map(|chunk| end_event(chunk)).or(self.end_event);
                    return Taken { chunks, missed: 0, next: self.next() };
                }
                Err(error) => {
                    let is_new = reading.next() == 0;
                    self.hub.file_is_broken();
                    if is_new {
                        self.reading = None;
                        return self.take_held(max_bytes);
                    }
                    self.failure = Some(error);
                    return Taken { next: self.next(), ..Taken::default() };
                }
            }
        }
        self.take_held(max_bytes)
    }

    /// Goes on with the hub's chunks, after all that stands in the file.
    fn leave_file(&mut self) {
        if let Some(reading) = self.reading.take() {
            let next = reading.chunk();
            (self.had, self.defined, self.next, self.has_begun) = (next, next, next, true);
            // Of one that came back with a place in the file it is not known otherwise.
            self.end_event = self.end_event.or(self.hub.0.lock().event_after(next));
        }
    }

    fn take_held(&mut self, max_bytes: usize) -> Taken {
        let shared = Arc::clone(&self.hub.0);
        let history = shared.lock();
        self.aim(&history);
        let (mut taken, mut bytes) = (Taken::default(), 0);
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
            self.defined = self.next;
            self.end_event = end_event(&entry.chunk).or(self.end_event);
            taken.missed += std::mem::take(&mut self.missed);
        }
        drop(history);
        self.hub.add_missed(taken.missed);
        taken.next = self.next();
        taken
    }

    /// What it is to be given next.
    fn upcoming<'a>(&mut self, history: &'a History) -> Option<&'a Entry> {
        if self.defined < self.next {
            let definitions = history.lasting_from(self.defined).next().filter(|entry| entry.number < self.next);
            if definitions.is_some() {
                return definitions;
            }
            self.defined = self.next;
        }
        history.held_from(self.next).next()
    }

    /// Decides where to go on, if not with the next chunk.
    fn aim(&mut self, history: &History) {
        let is_new = self.end_event.is_none() && !self.is_resumed;
        let target = if !self.has_begun {
            (history.end > 0).then(|| history.begin(self.begin))
        } else if self.next < history.first() {
            // A newcomer gets what it asked for, one that was here before what is newest.
            Some(if is_new { history.begin(self.begin) } else { history.begin(Begin::Newest) })
        } else if self.defined == self.next {
            let lag = history.lag(self.next);
            self.least_lag = self.least_lag.min(lag);
            let is_too_slow = lag - self.least_lag > self.hub.0.limits.lag_bytes;
            history.newest_state().filter(|&state| is_too_slow && state > self.next)
        } else {
            None
        };
        let Some(target) = target else { return };
        if self.defined == self.next {
            self.had = self.next;
        }
        (self.has_begun, self.next, self.least_lag) = (true, target, u64::MAX);
        let moment = history.held_from(target).next().and_then(|entry| end_event(&entry.chunk));
        self.missed = moment.zip(self.end_event).map_or(0, |(moment, had)| moment.saturating_sub(had));
    }

    /// Waits until there is something to take; `false` if everything was taken and nothing more will come.
    pub async fn wait(&mut self) -> bool {
        if self.failure.is_some() {
            return false;
        }
        if self.reads_file() || self.defined < self.next {
            return true;
        }
        let next = self.next;
        // An error says that the hub is gone, which cannot be while this viewer has it.
        self.tip.wait_for(|tip| tip.end > next || tip.ended).await.is_ok_and(|tip| tip.end > next)
    }
}
