//! A disk in memory that fails on request, and recordings to write to it.

use std::io::{self, Write};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vramscope_trace::{
    Annotation, AnnotationStage, Chunk, Definition, DeviceId, Encoder, Event, EventKind, PoolKey, PoolKind,
    RecordingInfo, Sink, SiteId, StreamId, StringId,
};

use super::storage::{FileRole, OutputStream, Storage};
use super::{Keep, RecordingFile, Writer};

/// Creates a recording that is written to `out`, with a queue of `queue_bytes`; a write that takes
/// longer than `patience` counts as failed.
pub(crate) fn stream_with_queue(
    out: impl Write + Send + 'static,
    queue_bytes: usize,
    patience: Duration,
) -> RecordingFile {
    let writer = Writer::new(OutputStream(Box::new(out)), Keep::default());
    RecordingFile::start_with("a stream".to_owned(), writer, queue_bytes, patience).expect("the thread starts")
}

/// A simulated failure of one call of a [`FakeDisk`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// This call fails; the next one succeeds.
    Once(io::ErrorKind),
    /// A write takes this many sixteenths of the bytes, at least one byte.
    Short(usize),
    /// A write takes this many sixteenths; then everything fails except truncating.
    Full(usize, io::ErrorKind),
    /// Like `Full`, but truncating fails, too.
    Gone(usize, io::ErrorKind),
}

/// The files and failures of a [`FakeDisk`].
#[derive(Debug, Default)]
pub(super) struct FakeDiskState {
    pub(super) current: Vec<u8>,
    pub(super) next: Option<Vec<u8>>,
    /// The call that fails, counted from 0.
    pub(super) fault: Option<(u64, Fault)>,
    pub(super) calls: u64,
    pub(super) pauses: u32,
    /// Set once everything fails.
    failing: Option<Fault>,
    /// How often the next file replaced the current one.
    pub(super) taken: u32,
    /// Bytes of the next file that a power failure leaves.
    synced: usize,
    /// The error that emptying the file returns, if any.
    pub(super) clear_fault: Option<io::ErrorKind>,
    /// If set, emptying the file blocks until this channel has a message.
    pub(super) clear_hangs: Option<Receiver<()>>,
    /// The error that every sync returns, if any.
    pub(super) sync_fault: Option<io::ErrorKind>,
    /// The steps so far of replacing the current file, in order.
    pub(super) replacing: Vec<ReplacementStep>,
}

/// A step of replacing the current file of a [`FakeDisk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplacementStep {
    SyncedNext,
    Renamed,
    SyncedFolder,
}

impl FakeDiskState {
    /// Counts a call that transfers `len` bytes and returns how many of them succeed, or the error
    /// that [`fault`](Self::fault) demands.
    fn call(&mut self, len: usize) -> io::Result<usize> {
        let number = self.calls;
        self.calls += 1;
        if let Some(Fault::Full(_, kind) | Fault::Gone(_, kind)) = self.failing {
            return Err(kind.into());
        }
        match self.fault.filter(|&(at, _)| at == number) {
            None => Ok(len),
            Some((_, Fault::Once(kind))) => Err(kind.into()),
            Some((_, Fault::Short(parts))) => Ok((len * parts / 16).max(1).min(len)),
            Some((_, fault @ (Fault::Full(parts, kind) | Fault::Gone(parts, kind)))) => {
                self.failing = Some(fault);
                if parts == 0 { Err(kind.into()) } else { Ok(len * parts / 16) }
            }
        }
    }
}

/// A disk in memory. Clones share the files, so that a test can inspect what was written.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeDisk(pub(super) Arc<Mutex<FakeDiskState>>);

impl Storage for FakeDisk {
    fn clear(&mut self) -> io::Result<()> {
        let mut state = self.0.lock().expect("no thread panics");
        if let Some(kind) = state.clear_fault {
            return Err(kind.into());
        }
        if let Some(released) = state.clear_hangs.take() {
            drop(state);
            // An error means that the test has ended.
            let _ = released.recv();
            state = self.0.lock().expect("no thread panics");
        }
        state.current.clear();
        Ok(())
    }

    fn append(&mut self, role: FileRole, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock().expect("no thread panics");
        let len = state.call(bytes.len())?;
        let file = match role {
            FileRole::Current => &mut state.current,
            FileRole::Next => state.next.as_mut().expect("the next file was begun"),
        };
        file.extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn cut(&mut self, role: FileRole, len: u64) -> io::Result<()> {
        assert_eq!(role, FileRole::Current);
        let mut state = self.0.lock().expect("no thread panics");
        if let Some(Fault::Gone(_, kind)) = state.failing {
            return Err(kind.into());
        }
        state.current.truncate(len as usize);
        Ok(())
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.lock().expect("no thread panics");
        let len = state.call(into.len())?;
        into[..len].copy_from_slice(&state.current[at as usize..][..len]);
        Ok(len)
    }

    fn begin_next(&mut self) -> io::Result<()> {
        let mut state = self.0.lock().expect("no thread panics");
        state.call(0)?;
        (state.next, state.synced) = (Some(Vec::new()), 0);
        Ok(())
    }

    fn sync_next(&mut self) -> io::Result<()> {
        let mut state = self.0.lock().expect("no thread panics");
        state.call(0)?;
        if let Some(kind) = state.sync_fault {
            // After a failed sync, any part of the file may be lost in a power failure.
            state.synced = state.next.as_ref().expect("the next file was begun").len();
            return Err(kind.into());
        }
        state.synced = state.next.as_ref().expect("the next file was begun").len();
        state.replacing.push(ReplacementStep::SyncedNext);
        Ok(())
    }

    fn take_next(&mut self) -> io::Result<()> {
        let mut state = self.0.lock().expect("no thread panics");
        state.call(0)?;
        state.current = state.next.take().expect("the next file was begun");
        assert_eq!(state.synced, state.current.len(), "a power failure would lose a part of the recording");
        state.taken += 1;
        state.replacing.push(ReplacementStep::Renamed);
        Ok(())
    }

    fn sync_folder(&mut self) {
        self.0.lock().expect("no thread panics").replacing.push(ReplacementStep::SyncedFolder);
    }

    fn drop_next(&mut self) {
        self.0.lock().expect("no thread panics").next = None;
    }

    fn pause(&mut self, _: Duration) {
        self.0.lock().expect("no thread panics").pauses += 1;
    }
}

/// A simulated program that allocates, frees and annotates, with the encoder of its recording.
pub(super) struct Program {
    pub(super) encoder: Encoder,
    events: u64,
    live: Vec<u64>,
    names: u32,
}

impl Program {
    pub(super) fn new() -> Self {
        Self { encoder: Encoder::new(&RecordingInfo::default()), events: 0, live: Vec::new(), names: 0 }
    }

    /// Records an event of this kind, 1 µs after the last one.
    fn event(&mut self, kind: EventKind) {
        self.encoder.event(&Event { device: DeviceId(0), time_ns: self.events * 1000, kind });
        self.events += 1;
    }

    /// Allocates `blocks` blocks of 512 bytes. While more than 32 are live, each allocation frees
    /// the oldest.
    pub(super) fn run(&mut self, blocks: u64) {
        for _ in 0..blocks {
            let address = 0x7f00_0000_0000 + self.events.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (1 << 30) * 512;
            let (stream, pool, site) = (StreamId(0), PoolKey::default_of(PoolKind::Small), SiteId(0));
            self.event(EventKind::BlockAllocated { address, size: 512, requested: 400, stream, pool, site });
            self.live.push(address);
            let address = if self.live.len() > 32 { self.live.remove(0) } else { 0 };
            self.event(EventKind::FreeCompleted { address, site });
        }
    }

    /// Defines a new name and records an annotation with it.
    pub(super) fn annotate(&mut self) {
        self.names += 1;
        self.encoder.define(&Definition::String(format!("name {}", self.names)));
        let (time_ns, at_event, name) = (self.events * 1000, self.events, StringId(self.names));
        self.encoder.annotation(&Annotation {
            device: DeviceId(0),
            time_ns,
            at_event,
            stage: AnnotationStage::Instant,
            name,
        });
    }

    /// Records the full memory state, so that the file can be shortened to begin with it.
    pub(super) fn replace_state(&mut self) {
        let state = self.encoder.state().clone();
        self.encoder.replace_state(&state);
    }

    /// Ends the current chunk and returns all chunks since the last call.
    pub(super) fn chunks(&mut self) -> Vec<Chunk> {
        self.encoder.flush();
        self.encoder.take_output()
    }
}
