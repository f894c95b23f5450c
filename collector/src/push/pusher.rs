//! The thread that pushes a recording.
//!
//! It reads the program's [`Hub`] as a viewer does, so the program never waits for it: if the
//! connection is too slow, events are skipped up to a newer full state. After a lost connection the
//! thread reconnects for as long as the program runs, and continues with the first chunk that the
//! server lacks.

use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::transport::{Demand, PushMessage, Transport};
use crate::hub::{Hub, RecordingIdentity, StreamPosition, Viewer};
use crate::process::Process;
use crate::wait_check::Wait;

/// The delay before the first attempt to reconnect, and the longest delay: each failed attempt
/// doubles the delay.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// The most bytes of chunks in one message, unless a single chunk is larger.
const MESSAGE_BYTES: usize = 256 << 10;
/// The most messages sent but not yet acknowledged; at this number, sending waits for the server.
const MAX_UNACKNOWLEDGED: usize = 16;
/// Interval at which the connection and the program's end are checked while there is nothing to
/// send.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The most time that the server may take to acknowledge a message; then the thread reconnects.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(30);
/// The most time that the program's end waits for the rest of the recording to be sent; then the
/// rest is lost.
const SHUTDOWN_TIME: Duration = Duration::from_secs(2);

/// A running push of a hub's recording to a server. Dropping it ends the push.
///
/// If the recording has ended by then, dropping waits for the rest to be sent, at most two seconds.
pub struct Push {
    /// The server's address, without secrets.
    server: String,
    /// Dropped to signal the thread that the program ends.
    shutdown: Option<Sender<()>>,
    finished: Receiver<()>,
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Push").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Push {
    /// Starts to push the hub's recording over `transport`. `server` is the server's address for
    /// messages.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub fn start_with(
        transport: impl Transport + 'static,
        server: String,
        process: Process,
        hub: &Hub,
    ) -> io::Result<Self> {
        let (shutdown, shutdown_receiver) = channel();
        let (finished_sender, finished) = channel();
        let mut pusher = Pusher {
            transport,
            hub: hub.clone(),
            process,
            server: server.clone(),
            shutdown: Shutdown { receiver: shutdown_receiver, deadline: None },
            has_logged_failure: false,
        };
        thread::Builder::new().name("vramscope-push".into()).spawn(move || {
            pusher.run();
            // An error means that `Push::drop` no longer waits.
            let _ = finished_sender.send(());
        })?;
        Ok(Self { server, shutdown: Some(shutdown), finished })
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        drop(self.shutdown.take());
        // The thread is not joined: it may be blocked in the operating system.
        let _ = self.finished.recv_timeout(SHUTDOWN_TIME + POLL_INTERVAL * 4);
    }
}

/// Tells the pushing thread when the program ends and until when it may still send.
struct Shutdown {
    /// Disconnected when the program ends.
    receiver: Receiver<()>,
    /// Deadline for sending the rest, once the program ends.
    deadline: Option<Instant>,
}

impl Shutdown {
    /// Waits for `timeout`, or until the program ends.
    fn wait(&mut self, timeout: Duration) {
        if self.deadline.is_some() {
            thread::sleep(timeout.min(POLL_INTERVAL));
        } else if self.receiver.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected) {
            self.deadline = Some(Instant::now() + SHUTDOWN_TIME);
        }
    }

    /// Returns true once the program's end has been delayed for [`SHUTDOWN_TIME`]; false before
    /// that and while the program runs.
    fn is_overdue(&mut self) -> bool {
        self.wait(Duration::ZERO);
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// Why a connection to the server ended early, and whether it had been established.
struct ConnectionError {
    reason: String,
    was_connected: bool,
}

/// A read position in the hub. `is_start` is true until the first chunks were taken, if they begin
/// with the header and all definitions.
struct Reader {
    viewer: Viewer,
    is_start: bool,
}

/// The state of the thread that pushes a hub's recording to a server over the connection `T`.
struct Pusher<T> {
    transport: T,
    hub: Hub,
    process: Process,
    /// The server's address for messages.
    server: String,
    shutdown: Shutdown,
    /// True from a logged failure until the next connection.
    has_logged_failure: bool,
}

impl<T: Transport> Pusher<T> {
    /// Pushes over one connection after another until the recording is complete or the program
    /// ends.
    fn run(&mut self) {
        let mut delay = RETRY_DELAY.0;
        loop {
            let Err(ConnectionError { reason, was_connected }) = self.session() else { return };
            if self.shutdown.is_overdue() {
                return;
            }
            if was_connected {
                delay = RETRY_DELAY.0;
            }
            if !std::mem::replace(&mut self.has_logged_failure, true) {
                tracing::warn!("push to {}: {reason}; trying again", self.server);
            }
            let was_shutting_down = self.shutdown.deadline.is_some();
            self.shutdown.wait(delay);
            if self.shutdown.is_overdue() {
                return;
            }
            // The program's end interrupts this wait; then the next attempt follows at once.
            let is_interrupted = was_shutting_down != self.shutdown.deadline.is_some();
            delay = if is_interrupted { POLL_INTERVAL } else { (delay * 2).min(RETRY_DELAY.1) };
        }
    }

    /// Connects and pushes until the recording has ended and is acknowledged.
    fn session(&mut self) -> Result<(), ConnectionError> {
        Wait::Network.begin();
        let connected = self.transport.connect(&self.process);
        let resume = connected.map_err(|reason| ConnectionError { reason, was_connected: false })?;
        if std::mem::take(&mut self.has_logged_failure) {
            tracing::info!("push to {}: connected", self.server);
        }
        let sent = self.send_all(resume).map_err(|reason| ConnectionError { reason, was_connected: true });
        self.network().close();
        sent
    }

    /// Sends the chunks that the transport wants, from number `resume` on, until the recording has
    /// ended and every chunk sent is acknowledged.
    fn send_all(&mut self, resume: u64) -> Result<(), String> {
        let mut reader = Some(self.reader_from(resume)?);
        let mut unacknowledged = 0;
        loop {
            match self.transport.demand() {
                Demand::Next => {}
                Demand::Start => {
                    if let Some(reader) = &mut reader {
                        reader.viewer.restart();
                        reader.is_start = true;
                    }
                }
                Demand::Nothing => {
                    reader = None;
                    unacknowledged -= self.receive_available(unacknowledged)?;
                    if !self.wait_for_demand()? {
                        break;
                    }
                    continue;
                }
            }
            let Reader { viewer, is_start } = reader
                .get_or_insert_with(|| Reader { viewer: self.hub.viewer(self.transport.begin()), is_start: true });
            let taken = viewer.take(MESSAGE_BYTES);
            if let Some(error) = viewer.failure() {
                return Err(format!("cannot read the recording's file: {error}"));
            }
            if taken.chunks.is_empty() {
                unacknowledged -= self.receive_available(unacknowledged)?;
                if let Some(reader) = &mut reader
                    && !self.wait_for_more(&mut reader.viewer)?
                {
                    break;
                }
                continue;
            }
            let is_start = std::mem::take(is_start);
            let (next, missed_events) = (taken.next, taken.missed_events);
            self.network().send(PushMessage { chunks: &taken.chunks, next, missed_events, is_start })?;
            unacknowledged += 1;
            while unacknowledged >= MAX_UNACKNOWLEDGED {
                self.receive()?;
                unacknowledged -= 1;
            }
        }
        for _ in 0..unacknowledged {
            self.receive()?;
        }
        self.network().finish()
    }

    /// Returns the transport, for a call that waits for the server. In debug builds, checks that
    /// this thread holds no lock for which the program would wait.
    fn network(&mut self) -> &mut T {
        Wait::Network.begin();
        &mut self.transport
    }

    /// Returns a reader that continues with chunk number `resume`; with 0, it begins where the
    /// transport says.
    fn reader_from(&mut self, resume: u64) -> Result<Reader, String> {
        let position = StreamPosition { recording: self.hub.identity(), next: resume };
        let viewer = self.hub.resume(position, self.transport.begin());
        if resume > 0 && !viewer.is_resumed() {
            // With a new identity, the chunks that the hub still holds are pushed as another run,
            // independent of the chunks that the server has already.
            self.process.identity = RecordingIdentity::random().to_string();
            return Err("the chunks that the server lacks are no longer available; pushing a new run".to_owned());
        }
        Ok(Reader { is_start: !viewer.is_resumed(), viewer })
    }

    /// Waits for more chunks, at most for [`POLL_INTERVAL`]. Returns true if more are there or may
    /// come, false if no more will come.
    fn wait_for_more(&mut self, viewer: &mut Viewer) -> Result<bool, String> {
        self.check_deadline()?;
        // A program that ends without ending its recording has nothing more to push.
        Ok(viewer.wait_timeout(POLL_INTERVAL).unwrap_or(self.shutdown.deadline.is_none()))
    }

    /// Waits while the transport wants nothing, at most for [`POLL_INTERVAL`]. Returns false if the
    /// program ends.
    fn wait_for_demand(&mut self) -> Result<bool, String> {
        self.check_deadline()?;
        self.shutdown.wait(POLL_INTERVAL);
        Ok(self.shutdown.deadline.is_none())
    }

    /// Returns an error if the program's end is overdue.
    fn check_deadline(&mut self) -> Result<(), String> {
        match self.shutdown.is_overdue() {
            true => Err("the program ended before everything was pushed".to_owned()),
            false => Ok(()),
        }
    }

    /// Waits for one acknowledgement. Fails after [`ACKNOWLEDGE_TIMEOUT`], or when the program's
    /// end is overdue.
    fn receive(&mut self) -> Result<(), String> {
        let deadline = Instant::now() + ACKNOWLEDGE_TIMEOUT;
        while self.network().receive(POLL_INTERVAL)?.is_none() {
            if Instant::now() > deadline {
                return Err(format!("the server acknowledged nothing for {} s", ACKNOWLEDGE_TIMEOUT.as_secs()));
            }
            self.check_deadline()?;
        }
        Ok(())
    }

    /// Receives the acknowledgements that have arrived, without waiting, and returns their number:
    /// at most `unacknowledged`, the number of messages not yet acknowledged.
    fn receive_available(&mut self, unacknowledged: usize) -> Result<usize, String> {
        let mut received = 0;
        // Called at least once, so that pings are answered.
        while self.network().receive(Duration::ZERO)?.is_some() && received < unacknowledged {
            received += 1;
        }
        Ok(received)
    }
}
