//! `vramscope pack`: places buffers whose lifetimes are known, in as little memory as possible.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use vramscope_collector::parse_time;
use vramscope_formats::{BufferTable, Limits};
use vramscope_insight::packing::{Buffer, DevicePacker, Packer, PackingState, PlacedRequest, common_alignment};
use vramscope_pool::rerun::RecordedRequests;
use vramscope_trace::{ByteSize, Count, DeviceId, DurationNs, MempoolId, Percent, Recording};

use crate::bars;
use crate::error::{CommandError, Result};
use crate::input::Input;
use crate::number::parse_whole;
use crate::output::{self, Output};
use crate::recorded;
use crate::signals::Interrupts;
use crate::terminal;

/// Text after the options in `vramscope pack --help`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  vramscope pack buffers.csv -o placed.csv --capacity 1MiB
  vramscope pack run.vram --time-limit 30s
  vramscope pack run.vram -o placed.csv --device 1 --json";

/// Number of search steps between two checks of the time limit: some 20 ms.
const STEPS: u64 = 5_000_000;
/// Default time limit.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Default time limit with a capacity, whose search ends once the placement fits.
const TIME_LIMIT_WITH_CAPACITY: Duration = Duration::from_secs(60);

/// Arguments of `vramscope pack`: the buffers, where to write the placement, and when to stop.
#[derive(Args, Debug)]
pub(crate) struct PackArguments {
    /// Table of buffers (.csv with the columns id,lower,upper,size), or a recording (.vram, .html),
    /// PyTorch snapshot (.pickle, .json), profiler trace (.json) or RMM log (.csv); each also with
    /// .gz or .zst
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Table to write, with the column offset; compressed if the name ends in .gz or .zst; - is
    /// standard output
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Stop once the placement is no higher than this, such as 40GiB
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteSize>,
    /// Stop after this long: 30s, 5m [default: 10s; 60s with --capacity]. Ctrl-C stops, too. Both
    /// keep the lowest placement so far
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    time_limit: Option<Duration>,
    /// Device of a recording of several devices
    #[arg(long, value_name = "N", value_parser = parse_whole::<u16>)]
    device: Option<u16>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The output of `pack --json`.
#[derive(Debug, Serialize)]
struct PackReport {
    buffers: usize,
    /// Peak of the live bytes: no placement is lower.
    peak_live_bytes: u64,
    height_bytes: u64,
    /// No placement is lower, as far as the search has proven.
    lower_bound_bytes: u64,
    /// Whether the placement is proven to be the lowest.
    optimal: bool,
    capacity_bytes: Option<u64>,
    /// The device of a recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<u16>,
    /// Reserved peak of a recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_reserved_bytes: Option<u64>,
}

/// The buffers to place, from a table or from a device of a recording, with their packer.
enum PackJob {
    Table { table: BufferTable, buffers: Vec<Buffer>, packer: Box<Packer> },
    Device { device: DeviceId, packer: Box<DevicePacker>, reserved_bytes: u64 },
}

/// Places buffers, writes the table and prints its height. Returns false if the placement is higher
/// than `--capacity`.
pub(crate) fn run(arguments: &PackArguments) -> Result<bool> {
    let path = &arguments.file;
    if let Some(output) = &arguments.output {
        output::refuse_input_as_output(path, output)?;
        if arguments.json && output::is_stdout(output) {
            return Err(CommandError::new("--json and -o - both write to standard output: name a file"));
        }
    }
    let interrupts = Interrupts::listen()?;
    let mut job = PackJob::read(arguments)?;
    let default_limit = if arguments.capacity.is_some() { TIME_LIMIT_WITH_CAPACITY } else { TIME_LIMIT };
    let limit = arguments.time_limit.unwrap_or(default_limit);
    let start = Instant::now();
    let line = terminal::status_line();
    let is_placed = |state: &PackingState| {
        state.is_done || arguments.capacity.is_some_and(|ByteSize(capacity)| state.height_bytes <= capacity)
    };
    let mut state = job.state();
    while !is_placed(&state) && start.elapsed() < limit && !interrupts.requested() {
        state = job.advance(STEPS);
        line.set_message(format!(
            "{}, {} above the peak of live bytes",
            ByteSize(state.height_bytes),
            above(state.height_bytes, state.peak_live_bytes)
        ));
    }
    line.finish_and_clear();
    terminal::message(format_args!(
        "placed {} in {}",
        Count(job.len() as u64).of("buffer", "buffers"),
        DurationNs(start.elapsed().as_nanos() as u64)
    ));
    if let Some(output) = &arguments.output {
        job.write(output)?;
    }
    let report = PackReport::new(&job, state, arguments.capacity);
    let fits = report.capacity_bytes.is_none_or(|capacity| state.height_bytes <= capacity);
    if arguments.json {
        terminal::print_json(&report)?;
    } else if arguments.output.as_deref().is_none_or(|output| !output::is_stdout(output)) {
        terminal::print(&report.text())?;
    }
    Ok(fits)
}

impl PackJob {
    /// Reads the file: a table of buffers, or a recording.
    fn read(arguments: &PackArguments) -> Result<Self> {
        let path = &arguments.file;
        match Input::open(path)?.into_buffer_table() {
            Ok(_) if arguments.device.is_some() => {
                Err(CommandError::new("--device is for recordings; a table of buffers has no devices"))
            }
            Ok(bytes) => Self::from_table(path, &bytes, arguments.capacity),
            Err(input) => Self::from_recording(path, &input.into_recording_without_marks()?, arguments.device),
        }
    }

    /// Reads a table of buffers from the bytes of the file at `path`.
    fn from_table(path: &Path, bytes: &[u8], capacity: Option<ByteSize>) -> Result<Self> {
        let table = BufferTable::read(bytes, &Limits::default()).map_err(|error| CommandError::file(path, error))?;
        let alignment = table.rows().iter().try_fold(1, |alignment, row| common_alignment(alignment, row.alignment));
        let alignment = alignment.ok_or_else(|| {
            CommandError::file(path, "the alignments have no common multiple up to 1 MiB: choose powers of two")
        })?;
        // If all sizes are multiples of the alignment, all offsets are as well.
        let aligned = |bytes: u64| bytes.checked_next_multiple_of(alignment).unwrap_or(bytes);
        let rows = table.rows().iter();
        let buffers: Vec<Buffer> =
            rows.map(|row| Buffer { lower: row.lower, upper: row.upper, size: aligned(row.size) }).collect();
        let mut packer = Packer::new(&buffers).map_err(|error| CommandError::file(path, error))?;
        if let Some(ByteSize(bytes)) = capacity {
            packer = packer.with_capacity(bytes);
        }
        Ok(Self::Table { table, buffers, packer: Box::new(packer) })
    }

    /// Takes the requests of a recording's device; `wanted` selects one of several devices.
    fn from_recording(path: &Path, recording: &Recording, wanted: Option<u16>) -> Result<Self> {
        let mut requests: BTreeMap<DeviceId, RecordedRequests> = BTreeMap::new();
        for history in recorded::histories(path, recording)? {
            let next = history.requests();
            match requests.entry(history.device()) {
                Entry::Occupied(entry) => entry.into_mut().append(next),
                Entry::Vacant(_) if next.requests.is_empty() => {}
                Entry::Vacant(entry) => drop(entry.insert(next)),
            }
        }
        let devices: Vec<DeviceId> = requests.keys().copied().collect();
        let numbers = devices.iter().map(|device| device.0.to_string()).collect::<Vec<_>>().join(", ");
        let device = match (wanted, &devices[..]) {
            (None, &[device]) => device,
            (None, []) => return Err(CommandError::file(path, "it contains no allocations to place")),
            (None, _) => {
                let message = format_args!("it has the devices {numbers}: choose one with --device");
                return Err(CommandError::file(path, message));
            }
            (Some(number), devices) => *devices.iter().find(|device| device.0 == number).ok_or_else(|| {
                CommandError::file(path, format_args!("it has no device {number}; it has: {numbers}"))
            })?,
        };
        let requests = requests.remove(&device).unwrap_or_default();
        let packer = DevicePacker::new(requests).map_err(|error| CommandError::file(path, error))?;
        let reserved_bytes = recording.series(device).map_or(0, |series| series.peak_reserved().bytes);
        Ok(Self::Device { device, packer: Box::new(packer), reserved_bytes })
    }

    /// Returns the state of the search: the lowest placement so far and its bounds.
    fn state(&self) -> PackingState {
        match self {
            Self::Table { packer, .. } => packer.state(),
            Self::Device { packer, .. } => packer.state(),
        }
    }

    /// Continues the search by about `steps` steps and returns its state.
    fn advance(&mut self, steps: u64) -> PackingState {
        match self {
            Self::Table { packer, .. } => packer.advance(steps),
            Self::Device { packer, .. } => packer.advance(steps),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Table { buffers, .. } => buffers.len(),
            Self::Device { packer, .. } => packer.len(),
        }
    }

    /// Writes the placement as a table.
    fn write(&self, path: &Path) -> Result {
        let mut output = Output::create_removed_on_signal(path)?;
        let written = match self {
            Self::Table { table, packer, .. } => table.write_placement(&packer.offsets(), &mut output),
            Self::Device { packer, .. } => write_requests(&packer.placement(), &mut output),
        };
        written.map_err(|error| CommandError::file(path, error))?;
        output.finish().map(drop)
    }
}

/// Writes placed requests of a recording as a table; requests that are never freed end with the
/// last moment.
fn write_requests(requests: &[PlacedRequest], out: &mut impl Write) -> std::io::Result<()> {
    let ends = requests.iter().map(|request| request.buffer.upper).filter(|&upper| upper < u64::MAX);
    let last = ends.chain(requests.iter().map(|request| request.buffer.lower)).max().unwrap_or(0);
    writeln!(out, "id,lower,upper,size,stream,mempool,offset")?;
    for PlacedRequest { number, buffer, arena, offset } in requests {
        let Buffer { lower, upper, size } = buffer;
        let upper = if *upper == u64::MAX { last + 1 } else { *upper };
        let (stream, MempoolId(mempool, creator)) = (arena.stream.0, arena.mempool);
        writeln!(out, "{number},{lower},{upper},{size},{stream},{mempool}:{creator},{offset}")?;
    }
    Ok(())
}

/// Returns the relative distance of a height from the peak of live bytes below it: `0.4%`.
fn above(height_bytes: u64, peak_bytes: u64) -> Percent {
    Percent(height_bytes.saturating_sub(peak_bytes) as f64 / peak_bytes.max(1) as f64)
}

impl PackReport {
    fn new(job: &PackJob, state: PackingState, capacity: Option<ByteSize>) -> Self {
        let (device, recorded_reserved_bytes) = match job {
            PackJob::Table { .. } => (None, None),
            PackJob::Device { device, reserved_bytes, .. } => (Some(device.0), Some(*reserved_bytes)),
        };
        Self {
            buffers: job.len(),
            peak_live_bytes: state.peak_live_bytes,
            height_bytes: state.height_bytes,
            lower_bound_bytes: state.lower_bound_bytes,
            optimal: state.height_bytes == state.lower_bound_bytes,
            capacity_bytes: capacity.map(|ByteSize(bytes)| bytes),
            device,
            recorded_reserved_bytes,
        }
    }

    /// Returns the report as text for the terminal.
    fn text(&self) -> String {
        let mut rows = vec![("peak of live bytes", self.peak_live_bytes, String::new())];
        let note = match (self.optimal, self.height_bytes == self.peak_live_bytes) {
            (true, true) => "the lowest possible".to_owned(),
            (true, false) if self.device.is_some() => "the lowest possible with that memory in use".to_owned(),
            (true, false) => "the lowest possible".to_owned(),
            (false, _) => format!("{} above the peak", above(self.height_bytes, self.peak_live_bytes)),
        };
        if self.device.is_some() && self.lower_bound_bytes > self.peak_live_bytes {
            let note = "freed memory that streams or private pools keep";
            rows.push(("with memory in use", self.lower_bound_bytes, note.to_owned()));
        }
        rows.push(("placement", self.height_bytes, note));
        if let Some(reserved) = self.recorded_reserved_bytes {
            let note = match reserved.checked_sub(self.height_bytes) {
                Some(_) => format!("{} above the placement", above(reserved, self.height_bytes)),
                None => "below: streams and pools passed memory on in smaller parts".to_owned(),
            };
            rows.push(("reserved, as recorded", reserved, note));
        }
        if let Some(capacity) = self.capacity_bytes {
            let note = if self.height_bytes <= capacity {
                "the placement fits"
            } else if self.lower_bound_bytes > capacity {
                "no placement fits"
            } else {
                "no placement found that fits"
            };
            rows.push(("capacity", capacity, note.to_owned()));
        }
        bars::chart(&rows)
    }
}
