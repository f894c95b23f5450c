//! The parts of a profiler trace from which memory and its sites follow, read while the trace
//! arrives.

use std::collections::HashMap;

use super::event::{FAILURE_EVENT, MEMORY_EVENT, TraceEvent, TrackId};
use super::splitter::{Item, SplitError, Splitter};
use crate::error::ReadError;
use crate::limits::{LimitExceeded, Limits, MemoryBudget};

/// Estimated memory of an entry of a hash table without its text, in bytes.
const TABLE_ENTRY_BYTES: usize = 64;
/// Number of consumed bytes after which the buffer is compacted.
const COMPACT_BYTES: usize = 1 << 20;

/// The kind of a span on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpanKind {
    /// An operator, such as `aten::mm`.
    Operator,
    /// A Python function, or a call of a module.
    Python,
    /// A range of `record_function`, or a step of the profiler.
    Annotation,
}

/// A span of time on a thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) thread: u32,
    /// The number of its name.
    pub(super) name: u32,
    pub(super) kind: SpanKind,
    pub(super) start_ns: i64,
    pub(super) end_ns: i64,
}

/// One end of an arrow from an operator to its part of the backward pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkEnd {
    /// The number that both ends have.
    pub(super) link: u32,
    pub(super) thread: u32,
    pub(super) time_ns: i64,
}

/// The device of a memory event as the trace has it: type and number.
pub(super) type TraceDevice = (i32, i32);

/// An allocation, a free, or a failed request.
#[derive(Clone, Copy, Debug)]
pub(super) struct MemoryRow {
    pub(super) device: TraceDevice,
    pub(super) thread: u32,
    pub(super) time_ns: i64,
    pub(super) address: u64,
    /// Size of the block in bytes, negative for a free; 0 for a failed request.
    pub(super) bytes: i64,
    /// Bytes of a failed request; else 0.
    pub(super) failed_bytes: u64,
    /// Bytes allocated after the event.
    pub(super) allocated: Option<u64>,
    /// Bytes reserved after the event.
    pub(super) reserved: Option<u64>,
}

/// A GPU of the machine.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct GpuProperties {
    pub(super) id: i32,
    pub(super) name: String,
    #[serde(rename = "totalGlobalMem")]
    pub(super) total_bytes: u64,
}

/// What was read of a trace.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Names of spans by number.
    pub(super) names: Vec<Box<str>>,
    /// In the order of the file.
    pub(super) spans: Vec<Span>,
    pub(super) memory: Vec<MemoryRow>,
    pub(super) link_starts: Vec<LinkEnd>,
    pub(super) link_ends: Vec<LinkEnd>,
    pub(super) gpus: Vec<GpuProperties>,
    /// Unix time of the events' time 0, in nanoseconds; 0 if the trace has none.
    pub(super) base_ns: i64,
    /// Number of events that are not valid.
    pub(super) invalid: u64,
}

/// Reads a trace of `torch.profiler` whose bytes arrive in pieces.
pub(crate) struct KinetoReader {
    /// Bytes that have arrived and are not read.
    buffer: Vec<u8>,
    /// Number of bytes of the buffer that were read.
    read: usize,
    /// Bytes of the file before the buffer.
    before: usize,
    splitter: Splitter,
    names: HashMap<Box<str>, u32>,
    threads: HashMap<(TrackId, TrackId), u32>,
    links: HashMap<TrackId, u32>,
    /// The thread of the last event: the next event is often of the same.
    last_thread: Option<((TrackId, TrackId), u32)>,
    budget: MemoryBudget,
    trace: Trace,
}

impl KinetoReader {
    /// Starts before the first byte of a trace.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            buffer: Vec::new(),
            read: 0,
            before: 0,
            splitter: Splitter::new(),
            names: HashMap::new(),
            threads: HashMap::new(),
            links: HashMap::new(),
            last_thread: None,
            budget: MemoryBudget::new(limits.max_bytes),
            trace: Trace::default(),
        }
    }

    /// Returns the buffer to which the next bytes must be appended.
    pub(crate) fn buffer_mut(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Returns the number of memory events so far.
    pub(crate) fn entries(&self) -> u64 {
        self.trace.memory.len() as u64
    }

    /// Reads the events that have arrived completely.
    ///
    /// # Errors
    /// If the text is no trace, or reading it takes more memory than the limits allow.
    pub(crate) fn run(&mut self) -> Result<(), ReadError> {
        let buffer = std::mem::take(&mut self.buffer);
        let result = self.read_buffer(&buffer);
        self.buffer = buffer;
        result?;
        if self.read == self.buffer.len() || self.read >= COMPACT_BYTES {
            self.buffer.drain(..self.read);
            self.before += self.read;
            self.read = 0;
        }
        Ok(())
    }

    fn read_buffer(&mut self, buffer: &[u8]) -> Result<(), ReadError> {
        loop {
            let mut at = self.read;
            let item = self.splitter.next(buffer, &mut at).map_err(|error| self.split_error(at, error))?;
            self.read = at;
            match item {
                None => return Ok(()),
                Some(Item::Event(range)) => {
                    let start = range.start;
                    let added = self.event(&buffer[range]);
                    added.map_err(|error| ReadError::at(self.before + start, error.to_string()))?;
                }
                Some(Item::Value { key, value }) => self.metadata(&buffer[key], &buffer[value]),
            }
        }
    }

    fn split_error(&self, at: usize, error: SplitError) -> ReadError {
        ReadError::at(self.before + at, format!("a profiler trace that is damaged: {error}"))
    }

    /// Reads a value beside the list of events. Values that are not as expected are ignored.
    fn metadata(&mut self, key: &[u8], value: &[u8]) {
        match key {
            b"deviceProperties" => self.trace.gpus = serde_json::from_slice(value).unwrap_or_default(),
            b"baseTimeNanoseconds" => self.trace.base_ns = serde_json::from_slice(value).unwrap_or(0),
            _ => {}
        }
    }

    /// Adds an event, if memory or its sites follow from it.
    fn event(&mut self, text: &[u8]) -> Result<(), LimitExceeded> {
        let Ok(event) = serde_json::from_slice::<TraceEvent<'_>>(text) else {
            self.trace.invalid += 1;
            return Ok(());
        };
        match (&*event.ph, &*event.cat) {
            ("i" | "I", _) if event.name == MEMORY_EVENT => self.memory_event(event, false),
            ("i" | "I", _) if event.name == FAILURE_EVENT => self.memory_event(event, true),
            ("X", "cpu_op" | "Operator") => self.span(event, SpanKind::Operator),
            ("X", "python_function" | "Python function") => self.span(event, SpanKind::Python),
            ("X", "user_annotation") => self.span(event, SpanKind::Annotation),
            ("s" | "f", "fwdbwd" | "forward_backward") => self.link_end(event),
            _ => Ok(()),
        }
    }

    /// Adds an allocation or a free, or with `is_failure` a failed request, which has no address.
    fn memory_event(&mut self, event: TraceEvent<'_>, is_failure: bool) -> Result<(), LimitExceeded> {
        let arguments = &event.args;
        let address = if is_failure { Some(0) } else { arguments.address };
        let bytes = arguments.bytes.filter(|bytes| !is_failure || *bytes > 0);
        let (Some(time_ns), Some(bytes), Some(address)) = (event.time_ns(), bytes, address) else {
            self.trace.invalid += 1;
            return Ok(());
        };
        let (bytes, failed_bytes) = if is_failure { (0, bytes.unsigned_abs()) } else { (bytes, 0) };
        let device = (arguments.device_type.unwrap_or(1), arguments.device.unwrap_or(0));
        let (allocated, reserved) = (arguments.allocated, arguments.reserved);
        let thread = self.thread(event.pid, event.tid)?;
        let row = MemoryRow { device, thread, time_ns, address, bytes, failed_bytes, allocated, reserved };
        self.budget.push(&mut self.trace.memory, row)
    }

    fn span(&mut self, event: TraceEvent<'_>, kind: SpanKind) -> Result<(), LimitExceeded> {
        // Functions in C have addresses in their names, and are in no stack of PyTorch's history.
        if kind == SpanKind::Python && event.name.starts_with("<built-in ") {
            return Ok(());
        }
        let Some(start_ns) = event.time_ns() else {
            self.trace.invalid += 1;
            return Ok(());
        };
        let end_ns = start_ns.saturating_add(event.duration_ns());
        let name = self.name(&event.name)?;
        let thread = self.thread(event.pid, event.tid)?;
        self.budget.push(&mut self.trace.spans, Span { thread, name, kind, start_ns, end_ns })
    }

    fn link_end(&mut self, event: TraceEvent<'_>) -> Result<(), LimitExceeded> {
        let Some(time_ns) = event.time_ns() else {
            self.trace.invalid += 1;
            return Ok(());
        };
        let next = u32::try_from(self.links.len()).map_err(|_| LimitExceeded)?;
        let link = match self.links.get(&event.id) {
            Some(known) => *known,
            None => {
                self.budget.spend(TABLE_ENTRY_BYTES)?;
                self.links.insert(event.id, next);
                next
            }
        };
        let is_start = event.ph == "s";
        let thread = self.thread(event.pid, event.tid)?;
        let ends = if is_start { &mut self.trace.link_starts } else { &mut self.trace.link_ends };
        self.budget.push(ends, LinkEnd { link, thread, time_ns })
    }

    /// Returns the number of a thread.
    fn thread(&mut self, process: TrackId, thread: TrackId) -> Result<u32, LimitExceeded> {
        let key = (process, thread);
        if let Some((last, number)) = &self.last_thread
            && *last == key
        {
            return Ok(*number);
        }
        let next = u32::try_from(self.threads.len()).map_err(|_| LimitExceeded)?;
        let number = match self.threads.get(&key) {
            Some(known) => *known,
            None => {
                self.budget.spend(2 * TABLE_ENTRY_BYTES)?;
                self.threads.insert(key.clone(), next);
                next
            }
        };
        self.last_thread = Some((key, number));
        Ok(number)
    }

    /// Returns the number of a name.
    fn name(&mut self, name: &str) -> Result<u32, LimitExceeded> {
        if let Some(known) = self.names.get(name) {
            return Ok(*known);
        }
        let number = u32::try_from(self.trace.names.len()).map_err(|_| LimitExceeded)?;
        self.budget.spend(2 * name.len() + TABLE_ENTRY_BYTES)?;
        self.names.insert(name.into(), number);
        self.budget.push(&mut self.trace.names, name.into())?;
        Ok(number)
    }

    /// Returns what was read, after the last byte has arrived.
    ///
    /// # Errors
    /// If the trace is cut off, or has no memory events.
    pub(super) fn into_trace(mut self) -> Result<(Trace, MemoryBudget), ReadError> {
        self.run()?;
        let len = self.before + self.buffer.len();
        if !self.splitter.is_complete() {
            return Err(ReadError::truncated(len));
        }
        if self.trace.memory.is_empty() {
            let problem =
                "a profiler trace without memory events: record it with torch.profiler.profile(profile_memory=True)";
            return Err(ReadError::at(len, problem));
        }
        Ok((self.trace, self.budget))
    }
}
