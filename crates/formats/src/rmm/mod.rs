//! Reads the log of RMM's `logging_resource_adaptor`: every allocation and deallocation that a
//! program made through a RAPIDS memory resource, as CSV.
//!
//! ```text
//! Thread,Time,Action,Pointer,Size,Stream
//! 2342727,15:47:02.841961,allocate,0x10012400000,1048576,0x0
//! 2342727,15:47:02.841977,free,0x10012400000,1048576,0x0
//! ```
//!
//! The log lacks some facts that a recording needs:
//!
//! - *Memory held by the upstream resource.* A segment is address space that was in use at some
//!   point of the log; it grows when a block lies beyond it and never shrinks. With a pool or an
//!   arena upstream, a segment is the part of it that was ever used. Memory that is returned to the
//!   driver stays reserved in the recording.
//! - *Block sizes.* A request is rounded up to the alignment that all pointers of the log share, at
//!   most the 256 bytes that RMM guarantees: no other block can begin before that.
//! - *The date.* Times are times of day; a time far before the previous line's is on the next day.
//! - *When a free completes.* It completes at once, because RMM reuses memory in stream order.
//!
//! Each line is one event; growing segments add events. Threads become scopes, such as `thread
//! 2342727`. The log is read twice: first to collect facts that must be known before the first
//! event, then to convert it. So only live blocks and segments are kept in memory.

mod convert;
pub(crate) mod log;
mod survey;

use vramscope_trace::{DeviceId, DeviceInfo, RecordingInfo, Sink};

use self::convert::Converter;
use self::log::{LogReader, TimeUnwrapper};
use self::survey::Survey;
use crate::error::ReadError;
use crate::limits::{Limits, MemoryBudget};
use crate::progress::{ImportPhase, ProgressReporter};
use crate::summary::{ImportSummary, WRITER};

/// Number of valid lines between two calls of the caller's progress function.
const PROGRESS_LINES: u64 = 1 << 16;

/// Returns the device number in the name of an RMM log file: RMM's Python interface writes
/// `log.dev1.csv`. Returns device 0 if the name has no valid number.
fn device_of(name: &str) -> DeviceId {
    let number = name.split('.').filter_map(|part| part.strip_prefix("dev")).find_map(|digits| digits.parse().ok());
    DeviceId(number.filter(|&number| number != DeviceId::HOST.0).unwrap_or(0))
}

/// Reads an RMM log and passes its events to the sink that `begin` creates. For parameters, result
/// and errors see the crate's public function [`import`](crate::import()).
pub(crate) fn import<S: Sink>(
    bytes: &[u8],
    name: &str,
    limits: &Limits,
    reporter: &mut ProgressReporter<'_>,
    begin: impl FnOnce(&RecordingInfo) -> S,
) -> Result<(S, ImportSummary), ReadError> {
    let len = bytes.len() as u64;
    let mut budget = MemoryBudget::new(limits.max_bytes);
    let mut surveying = |offset, lines| {
        reporter.set_read_bytes(offset);
        reporter.report(ImportPhase::Reading, offset, len, lines)
    };
    let survey = Survey::new(bytes, &mut budget, PROGRESS_LINES, &mut surveying)?;
    reporter.set_read_bytes(len);
    let device = device_of(name);
    let info = RecordingInfo {
        source: name.to_owned(),
        writer: WRITER.to_owned(),
        epoch_unix_ns: if survey.has_dates { u64::try_from(survey.epoch_ns).unwrap_or(0) } else { 0 },
        devices: vec![DeviceInfo { device: device.0, history_complete: survey.is_complete, ..DeviceInfo::default() }],
        ..RecordingInfo::default()
    };
    let mut converter = Converter::new(&survey, device, budget, begin(&info));
    let (mut reader, mut times) = (LogReader::new(bytes), TimeUnwrapper::default());
    while let Some(line) = reader.next()? {
        let Ok(row) = line.row else { continue };
        let time_ns = u64::try_from(times.unwrap_ns(row.time).saturating_sub(survey.epoch_ns)).unwrap_or(0);
        converter.convert(&row, time_ns).map_err(|error| line.error(error))?;
        if converter.rows.is_multiple_of(PROGRESS_LINES) {
            reporter.report(ImportPhase::Writing, line.offset, len, converter.rows)?;
        }
    }
    reporter.report(ImportPhase::Writing, 1, 1, converter.rows)?;
    let summary = ImportSummary {
        info: RecordingInfo { import_notes: converter.notes(&survey), ..info },
        events: converter.events,
        contradictions: converter.contradictions + survey.bad_rows,
    };
    Ok((converter.sink, summary))
}
