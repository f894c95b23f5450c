//! The recorder: a thread that encodes a program's events and passes the chunks to a file and a
//! [`Hub`].
//!
//! The program puts events into bounded queues through [`RecorderHandle`]s. Each handle has a queue
//! without locks; events of different handles are ordered by time. If a queue is full, the program
//! waits or events are dropped, as [`Overflow`] says. Encoding and compression run on the
//! recorder's thread, writing on the thread of the [file](crate::RecordingFile).
//!
//! # Why an event is packed first and encoded later
//!
//! An event is written twice between pool and file: as a compact record in a ring (`record`), then
//! as part of a chunk (`streams`). The record costs the program about 12 ns for an allocation with
//! its free (68 ns without, 80 ns with recording; `docs/benchmarks.md`, "hit of one size").
//! Encoding directly into a chunk would put delta coding, full states and compression on the
//! program's thread, and one lock around the encoder of all threads. The chunk is then the only
//! encoding, for file and viewers, except while a program with a file has viewers: the file needs
//! large chunks (3.2 bytes per event at high rates, 31.4 at 100 events/s), viewers need one every
//! 10 ms.
//!
//! Only the recorder reads a clock; everything else gets times as parameters.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vramscope_trace::RecordingInfo;

use crate::hub::Hub;
use crate::wait_check::Wait;

mod clock;
mod handle;
mod merge;
mod outputs;
#[cfg(test)]
mod overflow_tests;
mod record;
mod redacted;
mod ring_reader;
mod ring_writer;
mod state;
mod streams;
#[cfg(test)]
mod tests;

use clock::Clock;
pub use handle::RecorderHandle;
use merge::RingMerger;
pub use outputs::{FileErrorCallback, Outputs, Summary};
pub(crate) use record::Unit;
use redacted::{RecorderSink, redacted_streams};
use ring_writer::RingWriter;
pub use state::Overflow;
use state::RecorderState;
#[cfg(feature = "server")]
pub(crate) use streams::Streams;
#[cfg(not(feature = "server"))]
use streams::Streams;

/// Interval of merge passes. Viewers draw at most every 16 ms and people notice delays from about
/// 100 ms; a shorter interval makes smaller chunks, which compress worse.
const PASS_INTERVAL: Duration = Duration::from_millis(20);
/// Interval of merge passes while there are viewers.
const WATCHED_PASS_INTERVAL: Duration = Duration::from_millis(10);

/// A recording in progress. Dropping it ends the recording.
///
/// ```
/// use vramscope_collector::{Outputs, Recorder};
/// use vramscope_trace::{DeviceId, RecordingInfo};
///
/// let (recorder, mut handle) = Recorder::start(RecordingInfo::default(), Outputs::default())?;
/// handle.mark(DeviceId(0), "epoch 1");
/// assert_eq!(recorder.stop().events, 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Recorder {
    shared: Arc<RecorderState<RingWriter>>,
    thread: Option<JoinHandle<Summary>>,
}

impl Recorder {
    /// Starts a recording. If the epoch of `info` is 0, it becomes the current time.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn start(mut info: RecordingInfo, outputs: Outputs) -> io::Result<(Self, RecorderHandle)> {
        let clock = Clock::start();
        if info.epoch_unix_ns == 0 {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            info.epoch_unix_ns = u64::try_from(since_1970.as_nanos()).unwrap_or(0);
        }
        let shared = Arc::new(RecorderState::new(outputs.overflow));
        let hub = outputs.hub.clone();
        let thread = if outputs.redact {
            if let Some(hub) = &hub {
                hub.set_redacted();
            }
            spawn(Arc::clone(&shared), clock.clone(), hub, redacted_streams(&info, outputs))?
        } else {
            spawn(Arc::clone(&shared), clock.clone(), hub, Streams::new(&info, outputs))?
        };
        let handle = RecorderHandle::new(Arc::clone(&shared), clock, thread.thread().clone());
        Ok((Self { shared, thread: Some(thread) }, handle))
    }

    /// Ends the recording after all events recorded through its handles so far, and returns its
    /// number of events, size, waits and file error. Later events are ignored.
    ///
    /// # Panics
    /// If the recorder's thread panicked.
    pub fn stop(mut self) -> Summary {
        let ended = self.end().expect("the recording is ended once, by `stop` or by the drop");
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Ends the recording and waits for the recorder's thread. Returns the recording's [`Summary`],
    /// or the payload of the thread's panic; `None` if this was called before.
    fn end(&mut self) -> Option<std::thread::Result<Summary>> {
        let thread = self.thread.take()?;
        self.shared.close();
        thread.thread().unpark();
        Some(thread.join())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // A panic of the thread was printed when it happened; `stop` passes it on.
        let _ = self.end();
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

/// Ends the recording and the hub when the recorder's thread ends, also by a panic.
struct CloseOnDrop {
    shared: Arc<RecorderState<RingWriter>>,
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

/// Starts the recorder's thread, which passes everything to `sink`.
fn spawn(
    shared: Arc<RecorderState<RingWriter>>,
    clock: Clock,
    hub: Option<Hub>,
    sink: impl RecorderSink + Send + 'static,
) -> io::Result<JoinHandle<Summary>> {
    std::thread::Builder::new().name("vramscope-recorder".into()).spawn(move || {
        // Its drop wakes waiting threads when this thread ends, even by a panic.
        let closing = CloseOnDrop { shared, hub };
        run(&closing.shared, &clock, sink)
    })
}

/// Merges the rings and passes events to `sink` until the recording is closed; returns the
/// recording's number of events, size, waits and file error. Runs on the recorder's thread.
fn run(shared: &RecorderState<RingWriter>, clock: &Clock, mut sink: impl RecorderSink) -> Summary {
    let _forbidden = Wait::Network.forbid();
    let mut merge = RingMerger::default();
    // Start times of the last two passes. An event taken in this pass was recorded after the start
    // of the pass before the last, because a pass may leave an event only for the next pass.
    let mut pass_starts = [Instant::now(); 2];
    loop {
        // Handles end the wait early when a ring fills up.
        std::thread::park_timeout(if sink.streams().is_watched() { WATCHED_PASS_INTERVAL } else { PASS_INTERVAL });
        let [before_last, last] = pass_starts;
        pass_starts = [last, Instant::now()];
        let pass = merge.run_pass(shared, clock, &mut sink);
        let streams = sink.streams();
        streams.summary.events += pass.events;
        (streams.summary.waits, streams.summary.waited) = shared.waits();
        if shared.take_state_request() {
            streams.write_state();
        }
        streams.dropped = if pass.is_last { 0 } else { shared.dropped_events() };
        streams.finish_pass((!pass.is_idle).then_some(before_last), pass.is_last || shared.is_flush_wanted());
        shared.finish_pass();
        if pass.is_last {
            return sink.into_streams().finish();
        }
    }
}
