//! The follower: the thread that turns what the tracker writes into events of the recording.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use vramscope_collector::RecorderHandle;
use vramscope_formats::LiveSnapshot;
use vramscope_trace::{DeviceId, MemoryState, Sink as _};

use crate::definitions::Names;
use crate::notes::Notes;
use crate::own_events::device_of;
use crate::pace::SnapshotPace;
use crate::reader::{DeviceReader, RawEvent};
use crate::torch::actions;
use crate::{modules, native};

/// Interval of passes over the rings. The tracker never wakes the follower, which would be a system
/// call under the allocator's lock.
const PASS_INTERVAL: Duration = Duration::from_millis(4);

/// What the follower needs from Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PythonRequest {
    /// A snapshot of the allocator's state, because events were lost.
    Snapshot,
    /// The names of the program's modules.
    Modules,
    /// A check of autograd's operations in a backward pass, because the program has made one.
    Backward,
}

/// The requests that wait for Python.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pending: Mutex<Vec<PythonRequest>>,
    added: Condvar,
}

impl Requests {
    /// Adds a request, unless an equal one waits.
    fn add(&self, request: PythonRequest) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if !pending.contains(&request) {
            pending.push(request);
            self.added.notify_one();
        }
    }

    /// Returns the next request; `None` if none is added within `timeout`.
    pub(crate) fn next(&self, timeout: Duration) -> Option<PythonRequest> {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.added.wait_timeout_while(pending, timeout, |pending| pending.is_empty());
        let (mut pending, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if pending.is_empty() { None } else { Some(pending.remove(0)) }
    }
}

/// A task for the follower's thread.
type Command = Box<dyn FnOnce(&mut FollowerThread) + Send>;

/// The follower's thread. Dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct Follower {
    commands: Option<SyncSender<Command>>,
    requests: Arc<Requests>,
    thread: Option<JoinHandle<Vec<DeviceReader>>>,
}

/// The reason of an error when the follower's thread has ended by a panic.
const ENDED: &str = "internal error: the thread that follows the allocator has ended; please report this";

impl Follower {
    /// Starts the thread. Nothing is recorded until [`record`](Self::record).
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(readers: Vec<DeviceReader>, names: Names, notes: Notes) -> io::Result<Self> {
        let (commands, received) = sync_channel(1);
        let requests = Arc::new(Requests::default());
        let thread_requests = Arc::clone(&requests);
        let thread = std::thread::Builder::new().name("vramscope-follower".into()).spawn(move || {
            let mut follower = FollowerThread {
                readers,
                names,
                notes,
                requests: thread_requests,
                snapshots: SnapshotPace::default(),
                has_requested_backward: false,
                handle: None,
            };
            follower.run(&received);
            follower.readers
        })?;
        Ok(Self { commands: Some(commands), requests, thread: Some(thread) })
    }

    /// Runs `work` on the follower's thread and returns the result. The thread waits for the
    /// recorder, whose file fails if the disk hangs, so the result always comes.
    fn call<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut FollowerThread) -> R + Send + 'static,
    ) -> Result<R, String> {
        let (reply, received) = sync_channel(1);
        let commands = self.commands.as_ref().ok_or(ENDED)?;
        let command: Command = Box::new(move |thread| {
            // The caller may have stopped to wait.
            let _ = reply.send(work(thread));
        });
        commands.send(command).map_err(|_| ENDED)?;
        received.recv().map_err(|_| ENDED.to_owned())
    }

    /// Passes everything that the tracker has written so far to the recorder.
    pub(crate) fn flush(&self) -> Result<(), String> {
        self.call(FollowerThread::run_pass)
    }

    /// Records what the rings have, and no events after it until the next snapshot.
    pub(crate) fn pause(&self) -> Result<(), String> {
        self.call(|thread| {
            thread.run_pass();
            thread.readers.iter_mut().for_each(DeviceReader::wait_for_snapshot);
        })
    }

    /// Prepares for a snapshot: discards the events until now of the devices that need one, and
    /// keeps later ones in their rings until [`record`](Self::record).
    pub(crate) fn prepare_snapshot(&self) -> Result<(), String> {
        self.call(|thread| {
            thread.run_pass();
            let is_first = thread.handle.is_none();
            let needs = |reader: &&mut DeviceReader| is_first || reader.is_waiting() || reader.needs_snapshot();
            thread.readers.iter_mut().filter(needs).for_each(DeviceReader::wait_for_snapshot);
            thread.snapshots.prepared(Instant::now());
        })
    }

    /// Sets whether events are held until the tracker has been checked. Events that are held when
    /// the recording begins are recorded once they no longer are.
    pub(crate) fn hold_events(&self, holds: bool) -> Result<(), String> {
        self.call(move |thread| thread.readers.iter_mut().for_each(|reader| reader.holds_events = holds))
    }

    /// Returns the events of a device that are held, or were since
    /// [`prepare_snapshot`](Self::prepare_snapshot).
    pub(crate) fn held_events(&self, device: DeviceId) -> Result<Vec<RawEvent>, String> {
        self.call(move |thread| {
            let reader = thread.readers.iter_mut().find(|reader| reader.device == device);
            reader.map(|reader| reader.hold_events().iter().copied().collect()).unwrap_or_default()
        })
    }

    /// Leaves out one of the [`held_events`](Self::held_events) of a device, by its index.
    pub(crate) fn leave_out(&self, device: DeviceId, index: usize) -> Result<(), String> {
        self.call(move |thread| {
            if let Some(reader) = thread.readers.iter_mut().find(|reader| reader.device == device) {
                reader.leave_out(index);
            }
        })
    }

    /// Returns true if a device has held events, apart from the entries of snapshots. Returns false
    /// while a recording waits for a snapshot, which replaces what happened before it.
    pub(crate) fn has_held_events(&self) -> Result<bool, String> {
        self.call(|thread| {
            let is_event = |event: &RawEvent| event.action != actions::SNAPSHOT;
            let waits = thread.handle.is_some() && thread.readers.iter().any(DeviceReader::is_waiting);
            !waits && thread.readers.iter_mut().any(|reader| reader.hold_events().iter().any(is_event))
        })
    }

    /// Returns true if a device has lost events, so that another snapshot is needed.
    pub(crate) fn needs_snapshot(&self) -> Result<bool, String> {
        self.call(|thread| thread.readers.iter().any(DeviceReader::needs_snapshot))
    }

    /// Records from a snapshot on that was taken after
    /// [`prepare_snapshot`](Self::prepare_snapshot): first the state in the snapshot, then the
    /// events after it.
    pub(crate) fn record(&self, snapshot: Arc<LiveSnapshot>, handle: RecorderHandle) -> Result<(), String> {
        self.call(move |thread| thread.record(&snapshot, handle))?
    }

    /// Returns the requests that wait for Python.
    pub(crate) fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.requests)
    }

    /// Records what the rings have, and ends the thread. Returns the rings' reading ends; none if
    /// the thread has panicked.
    pub(crate) fn stop(mut self) -> Vec<DeviceReader> {
        self.end()
    }

    fn end(&mut self) -> Vec<DeviceReader> {
        drop(self.commands.take());
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.end();
    }
}

/// The state of the follower's thread.
struct FollowerThread {
    readers: Vec<DeviceReader>,
    names: Names,
    notes: Notes,
    requests: Arc<Requests>,
    snapshots: SnapshotPace,
    has_requested_backward: bool,
    /// The recorder's handle, once something has been recorded.
    handle: Option<RecorderHandle>,
}

impl FollowerThread {
    /// Reads the rings and carries out commands until the follower is dropped.
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            match commands.recv_timeout(PASS_INTERVAL) {
                Ok(command) => command(self),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.run_pass();
        }
        self.run_pass();
        self.readers.iter_mut().for_each(DeviceReader::stop);
    }

    /// Records what the rings have now, requests what is missing from Python, and finds what the
    /// tracker needs for C++ stacks.
    fn run_pass(&mut self) {
        native::refresh();
        native::find_requested_stacks();
        // Before the rings are read: they then have every event before the notes.
        self.notes.distribute(self.readers.iter_mut().map(|reader| (reader.device, &mut reader.notes)));
        for reader in &mut self.readers {
            reader.run_pass(&mut self.names);
        }
        if modules::wants_search() {
            self.requests.add(PythonRequest::Modules);
        }
        if self.names.has_backward && !std::mem::replace(&mut self.has_requested_backward, true) {
            self.requests.add(PythonRequest::Backward);
        }
        if self.snapshots.is_due(Instant::now()) && self.readers.iter().any(DeviceReader::needs_snapshot) {
            self.snapshots.requested();
            self.requests.add(PythonRequest::Snapshot);
        }
    }

    /// Records the state in the snapshot of the devices that wait for one, and their events from it
    /// on.
    fn record(&mut self, snapshot: &LiveSnapshot, mut handle: RecorderHandle) -> Result<(), String> {
        // The first snapshot waits for the recording's beginning.
        if self.handle.is_some() {
            self.snapshots.taken(Instant::now());
        }
        let mut devices = Vec::new();
        for reader in self.readers.iter_mut().filter(|reader| reader.is_waiting()) {
            let Some(event) = reader.skip_to_snapshot() else {
                if reader.needs_snapshot() {
                    // The ring was full before the snapshot was taken: another one is due.
                    continue;
                }
                return Err(format!("{}: PyTorch did not report the snapshot to the tracker", reader.device));
            };
            let (state, live) = device_of(snapshot, reader.device);
            devices.push((reader, state, live, handle.ns_at_time_stamp(event.time)));
        }
        let is_first = self.handle.is_none();
        if is_first {
            let mut memory = MemoryState::default();
            memory.set_time_ns(devices.iter().map(|&(.., time_ns)| time_ns).min().unwrap_or(0));
            for (reader, state, ..) in &devices {
                if state.segments().len() > 0 {
                    *memory.device_mut(reader.device) = state.clone();
                }
            }
            if memory.devices().len() > 0 {
                handle.replace_state(&memory);
            }
        }
        for (reader, state, live, time_ns) in devices {
            if is_first {
                reader.record(live, &state, handle.clone(), time_ns);
            } else {
                reader.resume(live, state, handle.clone(), time_ns);
            }
        }
        self.handle = Some(handle);
        Ok(())
    }
}
