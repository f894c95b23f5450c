//! A session: what one call of `vramscope.watch()` or `vramscope.record()` starts and stops.
//!
//! The Python package calls these functions in order, because the program decides when CUDA is
//! initialized, and snapshots are taken in Python:
//!
//! 1. [`Session::open`] serves the page. Nothing touches CUDA.
//! 2. Once PyTorch has initialized CUDA, [`Session::attach`] starts to follow the allocator.
//! 3. [`Session::start`] receives a snapshot that was taken in Python; events wait.
//! 4. Once a device is in use, [`Session::begin`] starts the recording with the first snapshot and
//!    the events after it. [`Session::check_events`] compares what the tracker saw with a second
//!    snapshot, before or after that; until it passes, no event is recorded.
//!
//! If events are lost later, [`Session::prepare_snapshot`], another snapshot and
//! [`Session::record`] repair the recording. If the allocator cannot be followed,
//! [`Session::poll`] records snapshots instead.

mod ending;
mod tracker_check;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vramscope_collector::session::{LateFile, Log, ProcessRecording, RecordingOptions, lifecycle, serve_hub};
use vramscope_collector::{Controls, Hub, Keep, Overflow, Server, file_writes};
use vramscope_formats::{Limits, LiveSnapshot};
use vramscope_trace::{AnnotationStage, DeviceId, DeviceInfo, RecordingInfo};

use self::ending::{END_PATIENCE, run_with_patience};
use crate::definitions::Names;
use crate::follower::{Follower, PythonRequest};
use crate::notes::{NoteKind, Notes, time_stamp};
use crate::polling::Poller;
use crate::reader::DeviceReader;
use crate::regions::Regions;
use crate::stacks::StackTable;
use crate::torch::{Autograd, layout_of};
use crate::tracker::{self, MAX_DEVICES, Mode};

/// Name and version of this library, for the headers of recordings.
const WRITER: &str = concat!("vramscope-hook ", env!("CARGO_PKG_VERSION"));

/// Error message of a call that needs a follower, in a session without one.
const NOT_FOLLOWING: &str = "the session does not follow the allocator";

/// The reading ends of the rings, between sessions. `None` until the tracker is attached.
static READERS: Mutex<Option<Vec<DeviceReader>>> = Mutex::new(None);

/// Locks a mutex, even if a thread panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Guarded values are replaced as a whole, so a panic leaves none half set.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A session: its page, its follower or poller, and its recording.
pub(crate) struct Session {
    /// Number of the process that opened the session; see [`lifecycle::generation`].
    generation: u32,
    options: Mutex<RecordingOptions>,
    log: Log,
    hub: Hub,
    controls: Controls,
    server: Mutex<Option<Server>>,
    regions: Regions,
    notes: Notes,
    /// True while autograd's operations are known to be read correctly.
    trusts_operations: Arc<AtomicBool>,
    /// True once a check of the tracker has passed in this session, so that its events are
    /// recorded.
    is_checked: AtomicBool,
    state: Mutex<SessionState>,
}

/// The parts of a session that start later: followed devices, follower or poller, and recording.
#[derive(Default)]
struct SessionState {
    devices: Vec<DeviceInfo>,
    /// True if this version of PyTorch reports private pools with events.
    has_mempools: bool,
    follower: Option<Follower>,
    /// Set if snapshots are recorded instead of the tracker's events.
    poller: Option<Poller>,
    /// The poller of pinned host memory; `None` until the program uses such memory.
    pinned_memory: Option<Poller>,
    recording: Option<ProcessRecording>,
    /// Files that began while the recording was in progress.
    late_files: Vec<LateFile>,
    /// The allocator's state when it was first followed, until the tracker has been checked and
    /// events are recorded.
    first_snapshot: Option<Arc<LiveSnapshot>>,
    /// When the tracker was attached, by the clock of trace entries.
    attached_at: u64,
}

impl SessionState {
    /// Returns the devices that the tracker can follow.
    fn device_ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.devices.len().min(MAX_DEVICES)).map(|device| DeviceId(device as u16))
    }

    /// Passes all events so far to the recording. Does nothing if the allocator is not followed.
    fn flush(&self) -> Result<(), String> {
        self.follower.as_ref().map_or(Ok(()), Follower::flush)
    }
}

/// Turns the tracker off, ends the follower, and keeps the rings' reading ends for a later session.
fn release_tracker(follower: Follower) {
    tracker::set_mode(Mode::Off);
    let readers = follower.stop();
    *lock(&READERS) = Some(readers);
}

/// Reads a snapshot of the allocator's state.
fn read_snapshot(bytes: &[u8]) -> Result<LiveSnapshot, String> {
    LiveSnapshot::read(bytes, &Limits::default()).map_err(|error| error.to_string())
}

impl Session {
    /// Opens a session: serves the page if the options say so. Returns an error if the page was
    /// requested and cannot be served.
    pub(crate) fn open(options: RecordingOptions, log: Log) -> Result<Self, String> {
        // If the recorder is too slow, the follower's thread waits. The program never waits for
        // either: the tracker counts events that find no room in its ring.
        let options = RecordingOptions { overflow: Some(Overflow::Wait), ..options };
        let session = Self {
            generation: lifecycle::generation(),
            options: Mutex::default(),
            log,
            // The hub is needed even without a page, because pushes and late files read from it.
            hub: Hub::default(),
            controls: Controls::default(),
            server: Mutex::default(),
            regions: Regions::default(),
            notes: Notes::default(),
            trusts_operations: Arc::default(),
            is_checked: AtomicBool::default(),
            state: Mutex::default(),
        };
        session.serve(&options)?;
        *lock(&session.options) = options;
        Ok(session)
    }

    /// Returns true if this process opened the session. In a forked child of that process, which
    /// has none of the session's threads, no part of the session may be used, not even a lock.
    pub(crate) fn is_own(&self) -> bool {
        self.generation == lifecycle::generation()
    }

    /// Serves the page at the address of the options, if they have one. A page that is served
    /// already stays where it is. Returns an error if the page cannot be served.
    pub(crate) fn serve(&self, options: &RecordingOptions) -> Result<(), String> {
        let mut server = lock(&self.server);
        if let Some(address) = options.listen
            && server.is_none()
        {
            let started = serve_hub(&self.hub, address, options, &self.controls, &self.log);
            *server = Some(started.map_err(|error| format!("{error}; the page is not served"))?);
        }
        Ok(())
    }

    /// Also writes the recording to another file, from the current state on. With `can_end`,
    /// [`end_file`](Self::end_file) may end the file before the recording. Does nothing if the
    /// recording is already written to this file.
    pub(crate) fn add_file(&self, path: &Path, keep: Keep, can_end: bool) -> Result<(), String> {
        let mut state = lock(&self.state);
        let mut options = lock(&self.options);
        let is_written =
            options.record.as_deref() == Some(path) || state.late_files.iter().any(|file| file.path() == path);
        if is_written {
            return Ok(());
        }
        if let Some(recording) = &state.recording {
            state.flush()?;
            recording.handle().write_state();
        } else if options.record.is_none() && !can_end {
            // The recording has not started yet, so the recorder writes the file, with every event.
            (options.record, options.keep) = (Some(path.to_owned()), keep);
            return Ok(());
        }
        let file = LateFile::start(path, keep, &self.hub, &self.log);
        state.late_files.push(file.map_err(|error| format!("{}: {error}", path.display()))?);
        Ok(())
    }

    /// Ends a file that [`add_file`](Self::add_file) began, after all events so far. Returns false
    /// if the file is incomplete. The recording continues.
    pub(crate) fn end_file(&self, path: &Path) -> Result<bool, String> {
        let mut state = lock(&self.state);
        state.flush()?;
        if let Some(recording) = &state.recording {
            recording.handle().flush();
        }
        let position = state.late_files.iter().position(|file| file.path() == path);
        let file = position.map(|position| state.late_files.swap_remove(position));
        drop(state);
        Ok(file.is_none_or(LateFile::finish))
    }

    /// Ends the connection to the server that the recording is pushed to. The recording continues.
    pub(crate) fn end_push(&self) {
        lock(&self.options).push = None;
        if let Some(recording) = &lock(&self.state).recording {
            recording.end_push();
        }
    }

    /// Returns the page's address with its token; `None` if no page is served.
    pub(crate) fn url(&self) -> Option<String> {
        lock(&self.server).as_ref().map(Server::url)
    }

    /// Returns the names of the regions of `torch.compile`.
    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Returns the queue of notes (marks, relabels, ends of steps) for the recording.
    pub(crate) fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Starts to follow the allocator of PyTorch 2.`minor` on `devices`, with `mode`. `stacks`
    /// creates a table of call stacks for a device; `None` records no stacks. With `autograd`,
    /// requests of the backward pass belong to their forward operation.
    pub(crate) fn attach(
        &self,
        minor: u32,
        devices: Vec<DeviceInfo>,
        mode: Mode,
        stacks: impl Fn() -> Option<StackTable>,
        autograd: Option<Autograd>,
    ) -> Result<(), String> {
        let layout = layout_of(minor).ok_or_else(|| format!("PyTorch 2.{minor} has an unknown layout"))?;
        tracker::claim()?;
        let mut readers = lock(&READERS);
        if readers.is_none() {
            let installed =
                tracker::install(layout, devices.len(), stacks, autograd).map_err(|error| error.to_string())?;
            *readers = Some(installed);
        }
        let taken = std::mem::take(readers.as_mut().unwrap_or_else(|| unreachable!("installed above")));
        drop(readers);
        if taken.is_empty() {
            return Err("another session is recording already".to_owned());
        }
        let names = Names {
            regions: self.regions.clone(),
            trusts_operations: Arc::clone(&self.trusts_operations),
            ..Names::default()
        };
        let follower = Follower::start(taken, names, self.notes.clone())
            .map_err(|error| format!("cannot start the thread that follows the allocator: {error}"))?;
        let attached_at = time_stamp();
        tracker::set_mode(mode);
        let result = follower.prepare_snapshot();
        let mut state = lock(&self.state);
        state.devices = devices;
        state.has_mempools = layout.mempool.is_some();
        state.attached_at = attached_at;
        state.follower = Some(follower);
        result
    }

    /// Calls `f` with the follower; fails if the session does not follow the allocator.
    fn follower<R>(&self, f: impl FnOnce(&Follower) -> R) -> Result<R, String> {
        let state = lock(&self.state);
        state.follower.as_ref().map(f).ok_or_else(|| NOT_FOLLOWING.to_owned())
    }

    /// Keeps events until [`record`](Self::record), so that a snapshot can be taken now.
    pub(crate) fn prepare_snapshot(&self) -> Result<(), String> {
        self.follower(Follower::prepare_snapshot)?
    }

    /// Keeps the first snapshot, taken after [`attach`](Self::attach), and events until
    /// [`begin`](Self::begin).
    pub(crate) fn start(&self, snapshot: &[u8]) -> Result<(), String> {
        lock(&self.state).first_snapshot = Some(Arc::new(read_snapshot(snapshot)?));
        Ok(())
    }

    /// Starts the recording with the state in the first snapshot, followed by the events after it.
    /// Until [`check_events`](Self::check_events) has passed, events are held.
    pub(crate) fn begin(&self) -> Result<(), String> {
        let mut state = lock(&self.state);
        let snapshot = state.first_snapshot.clone().ok_or("the session has no first snapshot")?;
        let recording = self.start_recording(&mut state.devices, &snapshot, Vec::new())?;
        state.recording = Some(recording);
        let is_checked = self.is_tracker_checked();
        state.follower.as_ref().ok_or(NOT_FOLLOWING)?.hold_events(!is_checked)?;
        if is_checked {
            state.first_snapshot = None;
        }
        drop(state);
        self.record_from(snapshot)
    }

    /// Starts the recording of devices that begin with the state in `snapshot`. `import_notes` are
    /// written to the recording's header.
    fn start_recording(
        &self,
        devices: &mut [DeviceInfo],
        snapshot: &LiveSnapshot,
        import_notes: Vec<String>,
    ) -> Result<ProcessRecording, String> {
        let known = snapshot.devices();
        for info in &mut *devices {
            info.history_complete = import_notes.is_empty() && !known.contains(&DeviceId(info.device));
        }
        let info = RecordingInfo {
            writer: WRITER.to_owned(),
            alloc_conf: snapshot.alloc_conf(),
            devices: devices.to_vec(),
            import_notes,
            ..RecordingInfo::default()
        };
        let recording = ProcessRecording::start(&lock(&self.options), Some(&self.hub), info, &self.log);
        let recording = recording.ok_or("the recording could not be started")?;
        self.controls.offer_recording(&self.hub, &recording.handle(), DeviceId(0), PathBuf::new());
        Ok(recording)
    }

    /// Records a snapshot of the devices without the tracker: the first call records the state in
    /// the snapshot, each later call the changes since the previous snapshot. `note` explains this
    /// in the recording's header. If the allocator was followed, stops following it.
    pub(crate) fn poll(&self, devices: Vec<DeviceInfo>, note: &str, snapshot: &[u8]) -> Result<(), String> {
        let snapshot = read_snapshot(snapshot)?;
        let mut state = lock(&self.state);
        if let Some(follower) = state.follower.take() {
            release_tracker(follower);
        }
        let has_begun = state.recording.is_some();
        if !has_begun {
            state.first_snapshot = None;
            state.devices = devices;
            let recording = self.start_recording(&mut state.devices, &snapshot, vec![note.to_owned()])?;
            state.recording = Some(recording);
        }
        let SessionState { devices, poller, recording, first_snapshot, .. } = &mut *state;
        let recording = recording.as_ref().ok_or("the recording has not been started")?;
        match poller {
            Some(poller) => {
                poller.take_notes(&self.notes);
                poller.record(&snapshot);
            }
            None => {
                let devices = devices.iter().map(|info| DeviceId(info.device));
                let started = Poller::start(devices, &snapshot, first_snapshot.take().as_deref(), recording.handle());
                *poller = Some(started);
                if has_begun {
                    self.notes.add([(None, NoteKind::Mark { name: note.into(), stage: AnnotationStage::Instant })]);
                }
            }
        }
        Ok(())
    }

    /// Records the changes of pinned host memory since the last call, from a snapshot that is
    /// limited to [`PINNED_SNAPSHOT_POOL`](crate::reader::PINNED_SNAPSHOT_POOL).
    pub(crate) fn record_pinned_memory(&self, snapshot: &[u8]) -> Result<(), String> {
        let snapshot = read_snapshot(snapshot)?;
        let mut state = lock(&self.state);
        let SessionState { pinned_memory, recording, .. } = &mut *state;
        let recording = recording.as_ref().ok_or("the recording has not been started")?;
        pinned_memory.get_or_insert_with(|| Poller::pinned_memory(recording.handle())).record(&snapshot);
        Ok(())
    }

    /// Continues to record from a snapshot that was taken after
    /// [`prepare_snapshot`](Self::prepare_snapshot).
    pub(crate) fn record(&self, snapshot: &[u8]) -> Result<(), String> {
        let snapshot = Arc::new(read_snapshot(snapshot)?);
        let mut state = lock(&self.state);
        if state.first_snapshot.is_some() {
            // The tracker has not been checked yet, so this is the new first snapshot of the check.
            state.first_snapshot = Some(Arc::clone(&snapshot));
        }
        drop(state);
        self.record_from(snapshot)
    }

    /// Passes a snapshot to the follower, which records its state and the events after it.
    fn record_from(&self, snapshot: Arc<LiveSnapshot>) -> Result<(), String> {
        let state = lock(&self.state);
        let (Some(follower), Some(recording)) = (&state.follower, &state.recording) else {
            return Err("the recording has not been started".to_owned());
        };
        follower.record(snapshot, recording.handle())
    }

    /// Sets what the tracker does. [`Mode::Off`] pauses the recording; another mode, and then a
    /// snapshot, resumes it.
    pub(crate) fn set_mode(&self, mode: Mode) -> Result<(), String> {
        tracker::set_mode(mode);
        if mode == Mode::Off { self.follower(Follower::pause)? } else { Ok(()) }
    }

    /// Writes what has been recorded so far to a file. A long recording may lack its beginning.
    pub(crate) fn save(&self, path: &Path) -> Result<(), String> {
        let state = lock(&self.state);
        let recording = state.recording.as_ref().ok_or("nothing has been recorded yet")?;
        state.flush()?;
        recording.save(&self.hub, path).map(drop).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Sets whether autograd's operations are known to be read correctly. While this is false,
    /// requests of the backward pass belong to no forward operation.
    pub(crate) fn trust_operations(&self, is_trusted: bool) {
        self.trusts_operations.store(is_trusted, Ordering::Relaxed);
    }

    /// Waits for the follower to request a task from Python; `None` after `timeout`.
    pub(crate) fn next_request(&self, timeout: Duration) -> Option<PythonRequest> {
        // The lock is not held during the wait.
        let requests = self.follower(Follower::requests).ok()?;
        requests.next(timeout)
    }

    /// Ends the recording, then the page's server. The tracker stays attached and returns at once.
    /// Returns false if the recording's file is incomplete. In a forked child it does nothing.
    ///
    /// Waits for the disk as long as it accepts data. If the disk hangs, the writing threads are
    /// left running: they hold no lock that the tracker or the program's exit needs.
    pub(crate) fn stop(&self) -> bool {
        if !self.is_own() {
            return true;
        }
        let (follower, recording, late_files) = {
            let mut state = lock(&self.state);
            // Dropped here, so that their recorder handles are closed before the recording ends.
            (state.poller, state.pinned_memory) = (None, None);
            (state.follower.take(), state.recording.take(), std::mem::take(&mut state.late_files))
        };
        let server = lock(&self.server).take();
        let steps = Arc::new(AtomicU64::new(0));
        let progress = {
            let steps = Arc::clone(&steps);
            move || steps.load(Ordering::Relaxed) + file_writes()
        };
        let ended = run_with_patience(END_PATIENCE, progress, move || {
            let end_step = || steps.fetch_add(1, Ordering::Relaxed);
            // A session without a follower does not turn the tracker off, because the tracker may
            // belong to a later session.
            if let Some(follower) = follower {
                release_tracker(follower);
                end_step();
            }
            let mut is_complete = recording.is_none_or(|recording| recording.stop());
            for file in late_files {
                end_step();
                is_complete &= file.finish();
            }
            end_step();
            drop(server);
            is_complete
        });
        ended.unwrap_or_else(|reason| {
            (self.log)(&format!("the recording could not be ended and is incomplete: {reason}"));
            false
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.stop();
    }
}
