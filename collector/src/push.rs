//! Sends a program's recording to a hub that several programs share, `vramscope serve`.
//!
//! It is a viewer of the program's own [`Hub`], on a thread of its own: the program never waits for it, and where the way to the other hub
//! is too slow it is moved on to a newer state, as any viewer is. A connection that breaks is made again, for as long as the program
//! runs, and goes on with what the other hub has not taken.
//!
//! `transport.rs` is the way there, of which there may be others; `websocket.rs` the one that there is.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::hub::{Begin, Hub, Identity, Position, Viewer};
use crate::process::Process;
use crate::socket::Address;

#[cfg(test)]
mod tests;
pub(crate) mod transport;
mod websocket;

use transport::{Note, Transport};
use websocket::WebSocketTransport;

/// The variable that names the hub to push to.
pub const PUSH_VARIABLE: &str = "VRAMSCOPE_PUSH";
/// How soon a broken connection is tried again, at first and at last.
const RETRY_AFTER: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Bytes of chunks in one message.
const MESSAGE_BYTES: usize = 256 << 10;
/// Messages that may be on their way before the first of them must have been taken.
const MAX_UNTAKEN: usize = 16;
/// How often the connection, and the program's end, are looked at while there is nothing to send.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the hub may take over a message.
const TAKING_TIME: Duration = Duration::from_secs(30);
/// How long the program's end may wait for the rest to be sent.
const ENDING_TIME: Duration = Duration::from_secs(2);

/// Is told, in a sentence, what a person should know.
type Tell = Box<dyn Fn(&str) + Send>;

/// Where the environment says to push to: the address in [`PUSH_VARIABLE`], `ws://127.0.0.1:7791`; `None` where it is not set, or empty.
///
/// # Errors
/// When the variable holds no address.
pub fn push_from_env() -> Result<Option<Address>, String> {
    push_from(env::var_os(PUSH_VARIABLE))
}

fn push_from(url: Option<OsString>) -> Result<Option<Address>, String> {
    let Some(url) = url.filter(|url| !url.is_empty()) else { return Ok(None) };
    // What was given is not repeated: a token may stand in it.
    let url = url.into_string().map_err(|_| format!("{PUSH_VARIABLE} is not Unicode text"))?;
    Address::parse(&url).map(Some).map_err(|error| format!("{PUSH_VARIABLE}: {error}"))
}

/// A recording on its way to a hub. When this is dropped what is left of the recording is sent, if it has ended and in so far as two
/// seconds are enough.
pub struct Push {
    address: Address,
    /// Dropped when the program ends.
    ending: Option<Sender<()>>,
    done: Receiver<()>,
}

impl fmt::Debug for Push {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Push").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Push {
    /// Begins to send the recording of the program of this name. `tell` is told, in a sentence, when the hub cannot be reached, and when it
    /// can again.
    ///
    /// # Errors
    /// If the operating system gives no thread.
    pub fn start(address: Address, program: &str, hub: &Hub, tell: impl Fn(&str) + Send + 'static) -> io::Result<Self> {
        let transport = WebSocketTransport::new(address.clone());
        Self::start_with(transport, address, program, hub, Box::new(tell))
    }

    fn start_with(
        transport: impl Transport + 'static,
        address: Address,
        program: &str,
        hub: &Hub,
        tell: Tell,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let process = Process::this(hub.identity().to_string(), program);
        let (ending, told) = channel();
        let (finished, done) = channel();
        let name = address.to_string();
        let mut pushing = Pushing {
            transport,
            runtime,
            hub: hub.clone(),
            process,
            name,
            tell,
            ending: Ending { told, deadline: None },
            is_told: false,
        };
        std::thread::Builder::new().name("vramscope-push".into()).spawn(move || {
            pushing.run();
            // Nobody may be there any more who wants to know.
            let _ = finished.send(());
        })?;
        Ok(Self { address, ending: Some(ending), done })
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        drop(self.ending.take());
        // A thread that is stuck in the operating system is left there.
        let _ = self.done.recv_timeout(ENDING_TIME + LOOK_EVERY * 4);
    }
}

/// When the program ends.
struct Ending {
    told: Receiver<()>,
    /// Until when the rest may be sent, once it does.
    deadline: Option<Instant>,
}

impl Ending {
    /// Waits, but not on when the program ends.
    fn wait(&mut self, wait: Duration) {
        if self.deadline.is_some() {
            std::thread::sleep(wait.min(LOOK_EVERY));
        } else if self.told.recv_timeout(wait) == Err(RecvTimeoutError::Disconnected) {
            self.deadline = Some(Instant::now() + ENDING_TIME);
        }
    }

    /// Whether it has been waited for long enough.
    fn is_over(&mut self) -> bool {
        self.wait(Duration::ZERO);
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

struct Pushing<T> {
    transport: T,
    runtime: tokio::runtime::Runtime,
    hub: Hub,
    process: Process,
    /// The address, for people.
    name: String,
    tell: Tell,
    ending: Ending,
    /// It was told that there is no connection.
    is_told: bool,
}

impl<T: Transport> Pushing<T> {
    fn run(&mut self) {
        let mut wait = RETRY_AFTER.0;
        loop {
            let Err((problem, was_connected)) = self.session() else { return };
            if self.ending.is_over() {
                return;
            }
            if was_connected {
                wait = RETRY_AFTER.0;
            }
            if !std::mem::replace(&mut self.is_told, true) {
                (self.tell)(&format!("push to {}: {problem}; trying again", self.name));
            }
            let was_ending = self.ending.deadline.is_some();
            self.ending.wait(wait);
            if self.ending.is_over() {
                return;
            }
            // The end is a reason to try at once, and not to wait for long again.
            wait =
                if was_ending == self.ending.deadline.is_some() { (wait * 2).min(RETRY_AFTER.1) } else { LOOK_EVERY };
        }
    }

    /// One connection. Ends well when all of the recording has been taken; else says why it ended, and whether there was one.
    fn session(&mut self) -> Result<(), (String, bool)> {
        let resume = self.transport.connect(&self.process).map_err(|problem| (problem, false))?;
        if std::mem::take(&mut self.is_told) {
            (self.tell)(&format!("push to {}: connected", self.name));
        }
        let sent = self.send_all(resume).map_err(|problem| (problem, true));
        self.transport.close();
        sent
    }

    fn send_all(&mut self, resume: u64) -> Result<(), String> {
        let position = Position { recording: self.hub.identity(), next: resume };
        let mut viewer = self.hub.resume(position, Begin::Oldest);
        if resume > 0 && !viewer.is_resumed() {
            // As a run of its own it may be told from what is still held, whatever the other hub has of the one before.
            self.process.identity = Identity::random().to_string();
            return Err("it cannot be told how it goes on; it begins anew".to_owned());
        }
        let mut untaken = 0;
        loop {
            let taken = viewer.take(MESSAGE_BYTES);
            if let Some(error) = viewer.failure() {
                return Err(format!("the recording's file cannot be read: {error}"));
            }
            if taken.chunks.is_empty() {
                untaken -= self.receive_ready(untaken)?;
                if !self.more(&mut viewer)? {
                    break;
                }
                continue;
            }
            let note = Note { next: Some(taken.next), missed: taken.missed, end: false };
            self.transport.send(note, &taken.chunks)?;
            untaken += 1;
            while untaken >= MAX_UNTAKEN {
                self.receive()?;
                untaken -= 1;
            }
        }
        for _ in 0..untaken {
            self.receive()?;
        }
        self.transport.send(Note { end: true, ..Note::default() }, &[])
    }

    /// Waits until there is more to send, or it is time to look at the connection; `false` where no more will come.
    fn more(&mut self, viewer: &mut Viewer) -> Result<bool, String> {
        if self.ending.is_over() {
            return Err("the program ends".to_owned());
        }
        let waited = self.runtime.block_on(async { tokio::time::timeout(LOOK_EVERY, viewer.wait()).await });
        // A program that ends without ending its recording has nothing more to say.
        Ok(waited.unwrap_or(self.ending.deadline.is_none()))
    }

    /// Waits until a message has been taken.
    fn receive(&mut self) -> Result<(), String> {
        let until = Instant::now() + TAKING_TIME;
        while self.transport.receive(LOOK_EVERY)?.is_none() {
            if Instant::now() > until {
                return Err(format!("it took nothing for {} s", TAKING_TIME.as_secs()));
            }
            if self.ending.is_over() {
                return Err("the program ends".to_owned());
            }
        }
        Ok(())
    }

    /// How many of the messages have been taken, as far as is known already.
    fn receive_ready(&mut self, untaken: usize) -> Result<usize, String> {
        let mut taken = 0;
        // Once even where there is none, for a ping may want an answer.
        while self.transport.receive(Duration::ZERO)?.is_some() && taken < untaken {
            taken += 1;
        }
        Ok(taken)
    }
}
