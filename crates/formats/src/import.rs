//! Imports a file: from its bytes to events in a sink.

use std::ops::ControlFlow;

use vramscope_trace::{RecordingInfo, Sink};

use crate::conversion::import_whole;
use crate::error::ReadError;
use crate::importer::Importer;
use crate::limits::Limits;
use crate::progress::{ImportProgress, ProgressReporter};
use crate::sniff::{InputFormat, sniff};
use crate::summary::ImportSummary;

/// Number of bytes of a pickle between two calls of the caller's progress function.
const PIECE_BYTES: usize = 1 << 20;

/// Reads a PyTorch snapshot (pickle or JSON) or an RMM log and passes its events to a sink.
///
/// `bytes` must be [unpacked](crate::unpack()); [`Importer`] takes packed files, in pieces. `name`
/// is recorded as the source of the recording. `begin` creates the sink; it is called after the
/// input was parsed and before the first event. `progress` may stop the import;
/// [`ignore_progress`](crate::ignore_progress) never does.
///
/// The sink receives definitions before the events that use them. If memory was in use before the
/// first event, it first receives a full state. Events of all devices are ordered by time, events
/// of one time by device; the events of one device keep the order of its history. Pinned host
/// memory is device [`DeviceId::HOST`](vramscope_trace::DeviceId::HOST). Time 0 is the earliest
/// event; [`RecordingInfo::epoch_unix_ns`] is its time since 1970. An annotation precedes the
/// events of its own time and later. If no entry has a time, event n happens at n microseconds.
///
/// ```
/// use vramscope_formats::{Limits, ignore_progress, import};
/// use vramscope_trace::NullSink;
///
/// let log = b"Thread,Time,Action,Pointer,Size,Stream\n1,12:00:00.5,allocate,0x7f00,256,0x0\n";
/// let limits = Limits::default();
/// let (_, summary) = import(log, "log.csv", &limits, &mut ignore_progress, |_| NullSink).unwrap();
/// // The block, and the segment that it shows to exist.
/// assert_eq!(summary.events, 2);
/// ```
///
/// # Errors
/// If the format is unknown, the input is damaged, reading needs more than `limits` allow, or
/// `progress` stops the import.
pub fn import<S: Sink>(
    bytes: &[u8],
    name: &str,
    limits: &Limits,
    progress: &mut dyn FnMut(&ImportProgress) -> ControlFlow<()>,
    begin: impl FnOnce(&RecordingInfo) -> S,
) -> Result<(S, ImportSummary), ReadError> {
    let format = sniff(bytes);
    if !matches!(format, Some(InputFormat::TorchPickle | InputFormat::KinetoTrace)) {
        let mut reporter = ProgressReporter::new(ImportProgress::default(), progress);
        return import_whole(bytes, format, name, limits, &mut reporter, begin);
    }
    let mut importer = Importer::new(limits, Some(bytes.len() as u64));
    for piece in bytes.chunks(PIECE_BYTES) {
        importer.push(piece)?;
        if progress(&importer.progress()).is_break() {
            return Err(ReadError::cancelled());
        }
    }
    importer.finish()?.write(name, progress, begin)
}
