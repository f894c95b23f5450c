//! A disk in memory that fails on request, and recordings to write to it.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vramscope_trace::{
    Annotation, AnnotationStage, Chunk, Definition, DeviceId, Encoder, Event, EventKind, PoolKey, PoolKind,
    RecordingInfo, Sink, SiteId, StreamId, StringId,
};

use super::storage::{FileRole, Storage, Stream};
use super::{Keep, RecordingFile, Writer};

/// Creates a stream behind a queue of this size.
pub(crate) fn stream_with_queue(
    out: impl Write + Send + 'static,
    queue_bytes: usize,
    patience: Duration,
) -> RecordingFile {
    let writer = Writer::new(Stream(Box::new(out)), Keep::default());
    RecordingFile::start_with("a stream".to_owned(), writer, queue_bytes, patience).expect("a thread")
}

/// A failure of one call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// This call fails; the next one succeeds.
    Once(io::ErrorKind),
    /// A write takes this many sixteenths of the bytes, at least one byte.
    Short(usize),
    /// A write takes this many sixteenths; then everything fails except truncating.
    Full(usize, io::ErrorKind),
    /// As `Full`, and truncating fails too.
    Gone(usize, io::ErrorKind),
}

/// A disk in memory.
#[derive(Debug, Default)]
pub(super) struct FakeState {
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
}

impl FakeState {
    /// Counts a call and returns how many bytes it takes.
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

/// The disk; the test keeps another clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Fake(pub(super) Arc<Mutex<FakeState>>);

impl Storage for Fake {
    fn append(&mut self, role: FileRole, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.0.lock().expect("no panic");
        let len = state.call(bytes.len())?;
        let file = match role {
            FileRole::Current => &mut state.current,
            FileRole::Next => state.next.as_mut().expect("it was begun"),
        };
        file.extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn cut(&mut self, role: FileRole, len: u64) -> io::Result<()> {
        assert_eq!(role, FileRole::Current);
        let mut state = self.0.lock().expect("no panic");
        if let Some(Fault::Gone(_, kind)) = state.failing {
            return Err(kind.into());
        }
        state.current.truncate(len as usize);
        Ok(())
    }

    fn read(&mut self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.lock().expect("no panic");
        let len = state.call(into.len())?;
        into[..len].copy_from_slice(&state.current[at as usize..][..len]);
        Ok(len)
    }

    fn begin_next(&mut self) -> io::Result<()> {
        let mut state = self.0.lock().expect("no panic");
        state.call(0)?;
        state.next = Some(Vec::new());
        Ok(())
    }

    fn take_next(&mut self) -> io::Result<()> {
        let mut state = self.0.lock().expect("no panic");
        state.call(0)?;
        state.current = state.next.take().expect("it was begun");
        state.taken += 1;
        Ok(())
    }

    fn drop_next(&mut self) {
        self.0.lock().expect("no panic").next = None;
    }

    fn pause(&mut self, _: Duration) {
        self.0.lock().expect("no panic").pauses += 1;
    }
}

/// A program that allocates and frees, with its encoder.
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

    fn event(&mut self, kind: EventKind) {
        self.encoder.event(&Event { device: DeviceId(0), time_ns: self.events * 1000, kind });
        self.events += 1;
    }

    /// Allocates `blocks` blocks and frees the oldest of 32 each time.
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

    /// Records a name and an annotation with it.
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

    pub(super) fn full_state(&mut self) {
        let state = self.encoder.state().clone();
        self.encoder.full_state(&state);
    }

    pub(super) fn chunks(&mut self) -> Vec<Chunk> {
        self.encoder.flush();
        self.encoder.take_output()
    }
}
