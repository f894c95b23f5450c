//! The follower: the thread that converts the tracker's records to events of the recording.

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

/// A task that the follower requests from Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PythonRequest {
    /// A snapshot of the allocator's state, because events were lost.
    Snapshot,
    /// The names of the program's modules.
    Modules,
    /// A check of how autograd's operations are read, because the program has run its first
    /// backward pass.
    Backward,
}

/// The queue of requests for Python.
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

/// A handle of the follower's thread. Dropping it stops the thread.
#[derive(Debug)]
pub(crate) struct Follower {
    commands: Option<SyncSender<Command>>,
    requests: Arc<Requests>,
    thread: Option<JoinHandle<Vec<DeviceReader>>>,
}

/// Error message for a call after the follower's thread has panicked.
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
            // Sending fails if the caller no longer waits.
            let _ = reply.send(work(thread));
        });
        commands.send(command).map_err(|_| ENDED)?;
        received.recv().map_err(|_| ENDED.to_owned())
    }

    /// Passes everything that the tracker has written so far to the recorder.
    pub(crate) fn flush(&self) -> Result<(), String> {
        self.call(FollowerThread::run_pass)
    }

    /// Records the events that are in the rings, and no later events until the next snapshot.
    pub(crate) fn pause(&self) -> Result<(), String> {
        self.call(|thread| {
            thread.run_pass();
            thread.readers.iter_mut().for_each(DeviceReader::wait_for_snapshot);
        })
    }

    /// Prepares for a snapshot, for each device that needs one: discards the device's events until
    /// now, and keeps later events in its ring until [`record`](Self::record).
    pub(crate) fn prepare_snapshot(&self) -> Result<(), String> {
        self.call(|thread| {
            thread.run_pass();
            let is_first = thread.handle.is_none();
            let needs = |reader: &&mut DeviceReader| is_first || reader.is_waiting() || reader.needs_snapshot();
            thread.readers.iter_mut().filter(needs).for_each(DeviceReader::wait_for_snapshot);
            thread.snapshots.prepared(Instant::now());
        })
    }

    /// Sets whether events are held (true) until the tracker has been checked. Once set to false,
    /// held events are recorded if the recording has begun.
    pub(crate) fn hold_events(&self, holds: bool) -> Result<(), String> {
        self.call(move |thread| thread.readers.iter_mut().for_each(|reader| reader.holds_events = holds))
    }

    /// Reads a device's ring and returns all events that are held for the device.
    pub(crate) fn held_events(&self, device: DeviceId) -> Result<Vec<RawEvent>, String> {
        self.call(move |thread| {
            let reader = thread.readers.iter_mut().find(|reader| reader.device == device);
            reader.map(|reader| reader.hold_events().iter().copied().collect()).unwrap_or_default()
        })
    }

    /// Removes one of the [`held_events`](Self::held_events) of a device, by its index, so that it
    /// is not recorded.
    pub(crate) fn leave_out(&self, device: DeviceId, index: usize) -> Result<(), String> {
        self.call(move |thread| {
            if let Some(reader) = thread.readers.iter_mut().find(|reader| reader.device == device) {
                reader.leave_out(index);
            }
        })
    }

    /// Returns true if a device has held events other than snapshots. Returns false while a
    /// recording waits for a snapshot, because the snapshot's state replaces these events.
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

    /// Starts or continues the recording with a snapshot that was taken after
    /// [`prepare_snapshot`](Self::prepare_snapshot): records the state in the snapshot, then the
    /// events after it.
    pub(crate) fn record(&self, snapshot: Arc<LiveSnapshot>, handle: RecorderHandle) -> Result<(), String> {
        self.call(move |thread| thread.record(&snapshot, handle))?
    }

    /// Returns the queue of requests for Python.
    pub(crate) fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.requests)
    }

    /// Records the events that are in the rings, and ends the thread. Returns the reading ends of
    /// the rings; an empty list if the thread has panicked.
    pub(crate) fn stop(mut self) -> Vec<DeviceReader> {
        self.end()
    }

    /// Ends the thread and waits for it. Returns the reading ends of the rings.
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

    /// Records the events that are in the rings, adds requests for Python (snapshots, module
    /// names), and updates the code map and stack bounds that the tracker needs for C++ stacks.
    fn run_pass(&mut self) {
        native::refresh();
        native::find_requested_stacks();
        // Notes are taken before the rings are read, so that the rings then contain every event
        // before the notes.
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

    /// Records, for each device that waits for a snapshot, its state in `snapshot` and its events
    /// after that.
    fn record(&mut self, snapshot: &LiveSnapshot, mut handle: RecorderHandle) -> Result<(), String> {
        // The first snapshot waits for the recording's beginning.
        if self.handle.is_some() {
            self.snapshots.taken(Instant::now());
        }
        let mut devices = Vec::new();
        for reader in self.readers.iter_mut().filter(|reader| reader.is_waiting()) {
            let Some(event) = reader.skip_to_snapshot() else {
                if reader.needs_snapshot() {
                    // The ring was full before the snapshot was taken, so another snapshot is
                    // needed.
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
