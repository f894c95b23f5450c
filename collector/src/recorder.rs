//! The recorder: a thread that turns what happened into a recording and hands it to a file and to the [`Hub`].
//!
//! The program that is recorded puts events into a bounded queue through a [`RecorderHandle`]. Each handle has a queue
//! of its own, which takes no lock; between handles the events' times say the order. When a queue is full the program
//! waits, and nothing is lost, or events are dropped, as [`Overflow`] says. Everything slow is done elsewhere: encoding and compression on the recorder's own thread,
//! writing on the [file](RecordingFile)'s.
//!
//! This is the only place that reads a clock; everything else is told the time.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vramscope_trace::RecordingInfo;

use crate::file::{FileError, RecordingFile};
use crate::hub::Hub;

mod clock;
mod handle;
mod merge;
#[cfg(test)]
mod overflow_tests;
mod place;
mod record;
mod ring;
mod shared;
mod streams;
#[cfg(test)]
mod tests;

use clock::Clock;
pub use handle::RecorderHandle;
use merge::Merge;
pub(crate) use record::Unit;
pub use shared::Overflow;
use shared::Shared;
pub(crate) use streams::Streams;

/// How long events may wait in their queues, and what is sent to viewers before it is. A viewer draws at most every 16
/// ms and a person sees a delay from about 100 ms on; a shorter wait makes smaller chunks, which compress worse.
const ROUND_EVERY: Duration = Duration::from_millis(20);
/// The same while somebody watches: what is seen is as much fresher.
const WATCHED_ROUND_EVERY: Duration = Duration::from_millis(10);

/// Is told why a file could not be written.
pub type FileErrorCallback = Box<dyn FnOnce(&FileError) + Send>;

/// Where a recording goes.
#[derive(Default)]
pub struct Outputs {
    /// A file, or anything else that takes bytes. What happened is there 250 ms later.
    pub file: Option<RecordingFile>,
    /// The viewers.
    pub hub: Option<Hub>,
    /// Called, once, when the file could not be written. The recording goes on for the viewers.
    pub on_file_error: Option<FileErrorCallback>,
    /// What is done when the program is faster than all this.
    pub overflow: Overflow,
}

/// What was recorded.
#[derive(Debug, Default)]
pub struct Summary {
    /// How many events, gaps among them.
    pub events: u64,
    /// How many events were dropped, all of which a gap tells of.
    pub lost_events: u64,
    /// Bytes of the file, where there is one; else of the recording.
    pub bytes: u64,
    /// Why the file ends before the recording.
    pub file_error: Option<FileError>,
    /// How often the program had to wait because a queue was full.
    pub waits: u64,
    /// For how long in all.
    pub waited: Duration,
}

/// A recording in progress. Dropping it ends the recording.
pub struct Recorder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Summary>>,
}

impl Recorder {
    /// Begins a recording. Where `info` names no epoch, it is now.
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub fn start(mut info: RecordingInfo, outputs: Outputs) -> io::Result<(Self, RecorderHandle)> {
        let clock = Clock::start();
        if info.epoch_unix_ns == 0 {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            info.epoch_unix_ns = u64::try_from(since_1970.as_nanos()).unwrap_or(0);
        }
        let shared = Arc::new(Shared::new(outputs.overflow));
        let hub = outputs.hub.clone();
        let streams = Streams::new(&info, outputs);
        let (theirs, their_clock) = (Arc::clone(&shared), clock.clone());
        let thread = std::thread::Builder::new().name("vramscope-recorder".into()).spawn(move || {
            // However this thread ends, nobody may go on waiting for it.
            let closing = CloseOnDrop { shared: theirs, hub };
            run(&closing.shared, &their_clock, streams)
        })?;
        let handle = RecorderHandle::new(Arc::clone(&shared), clock, thread.thread().clone());
        Ok((Self { shared, thread: Some(thread) }, handle))
    }

    /// Ends the recording: everything put through a handle so far is written. What comes later is ignored.
    pub fn stop(mut self) -> Summary {
        let ended = self.end().expect("only this and the drop after it end the recording");
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn end(&mut self) -> Option<std::thread::Result<Summary>> {
        let thread = self.thread.take()?;
        self.shared.close();
        thread.thread().unpark();
        Some(thread.join())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // The panic of a broken recorder was printed when it happened; whoever wants to know calls `stop`.
        let _ = self.end();
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

struct CloseOnDrop {
    shared: Arc<Shared>,
    hub: Option<Hub>,
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.shared.end();
        if let Some(hub) = &self.hub {
            hub.end();
        }
    }
}

fn run(shared: &Shared, clock: &Clock, mut streams: Streams) -> Summary {
    let mut merge = Merge::default();
    // When the last two rounds began. What is taken in one was put after the beginning of the last but one, which may
    // have left it.
    let mut begun = [Instant::now(); 2];
    loop {
        // Handles end the wait when there is much to do.
        std::thread::park_timeout(if streams.is_watched() { WATCHED_ROUND_EVERY } else { ROUND_EVERY });
        let [before_last, last] = begun;
        begun = [last, Instant::now()];
        let round = merge.round(shared, clock, &mut streams);
        streams.summary.events += round.events;
        (streams.summary.waits, streams.summary.waited) = shared.waits();
        streams.dropped = if round.last { 0 } else { shared.look_at_dropped() };
        streams.round((!round.idle).then_some(before_last), round.last || shared.is_flush_wanted());
        shared.round_is_done();
        if round.last {
            return streams.finish();
        }
    }
}
