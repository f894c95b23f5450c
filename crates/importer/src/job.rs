//! The conversion of a file, piece by piece, so that it can run in a worker: bytes of the file go
//! in, chunks of the recording come out.

use std::ops::ControlFlow;

use vramscope_formats::{ImportProgress, ImportSummary, Importer, InputFormat, Limits, ReadError, unsupported_file};
use vramscope_trace::{Encoder, Event, RecordingInfo, Sink};

/// Number of events after which finished chunks of the recording are passed on.
const EVENTS_PER_OUTPUT: u32 = 4096;
/// Size in bytes of the parts in which an unpacked recording is passed on.
const PART_BYTES: usize = 1 << 20;

/// Why a file cannot be converted to a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImportError {
    /// The file is of no format that is read: what it is, and what to do.
    #[error("{0}")]
    Unsupported(String),
    /// The progress function has stopped the import.
    #[error("the import was cancelled")]
    Cancelled,
    /// The snapshot or log is damaged, or too large.
    #[error("{0}")]
    Invalid(String),
}

impl From<ReadError> for ImportError {
    fn from(error: ReadError) -> Self {
        if error.is_cancelled() { Self::Cancelled } else { Self::Invalid(error.to_string()) }
    }
}

/// The conversion of a file whose bytes arrive in pieces to a recording.
///
/// [`push`](Self::push) reads the file as it arrives, [`finish`](Self::finish) passes on the
/// recording's chunks as they are ready; the first ones come after about half of the conversion's
/// time. To cancel a job between two calls, drop it.
///
/// ```
/// use vramscope_formats::ignore_progress;
/// use vramscope_importer::ImportJob;
///
/// let mut job = ImportJob::new("log.csv", None);
/// job.push(b"Thread,Time,Action,Pointer,Size,Stream\n1,12:00:00.5,alloc").unwrap();
/// job.push(b"ate,0x7f00,256,0x0\n").unwrap();
/// let mut recording = Vec::new();
/// let mut output = |part: Vec<u8>| recording.extend(part);
/// let summary = job.finish(&mut ignore_progress, &mut output).unwrap();
/// assert_eq!(summary.map(|summary| summary.events), Some(2));
/// assert!(recording.starts_with(b"\x89VRAM"));
/// ```
pub struct ImportJob {
    name: String,
    importer: Importer,
}

impl ImportJob {
    /// Creates the conversion of the file called `name`, of `total_bytes` bytes if known.
    #[must_use]
    pub fn new(name: &str, total_bytes: Option<u64>) -> Self {
        Self { name: name.to_owned(), importer: Importer::new(&Limits::default(), total_bytes) }
    }

    /// Reads the next bytes of the file.
    ///
    /// # Errors
    /// If the file is damaged or too large.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        Ok(self.importer.push(bytes)?)
    }

    /// Returns how far the conversion is.
    #[must_use]
    pub fn progress(&self) -> ImportProgress {
        self.importer.progress()
    }

    /// Converts the file after its last byte and passes the recording's bytes to `output`, in parts
    /// that are complete chunks. Returns what was converted; `None` if the file contains a
    /// recording, whose parts may then be of any size.
    ///
    /// # Errors
    /// If the file is empty, damaged, too large or of no known format, or `progress` stops the
    /// conversion.
    pub fn finish(
        self,
        progress: &mut dyn FnMut(&ImportProgress) -> ControlFlow<()>,
        output: &mut dyn FnMut(Vec<u8>),
    ) -> Result<Option<ImportSummary>, ImportError> {
        let file = self.importer.finish()?;
        match file.format() {
            None => Err(ImportError::Unsupported(unsupported_file(&file.into_bytes(), &self.name))),
            Some(InputFormat::Recording) => {
                file.into_bytes().chunks(PART_BYTES).for_each(|part| output(part.to_vec()));
                Ok(None)
            }
            Some(_) => {
                let (sink, summary) = file.write(&self.name, progress, |info| ChunkSink::new(info, output))?;
                sink.finish(&summary.info);
                Ok(Some(summary))
            }
        }
    }
}

/// A sink that encodes imported events and passes on the chunks of the recording.
struct ChunkSink<'a> {
    encoder: Encoder,
    output: &'a mut dyn FnMut(Vec<u8>),
    /// Events since the encoder's output was passed on.
    events: u32,
}

impl<'a> ChunkSink<'a> {
    /// Creates a sink that has passed on nothing.
    fn new(info: &RecordingInfo, output: &'a mut dyn FnMut(Vec<u8>)) -> Self {
        Self { encoder: Encoder::new(info), output, events: 0 }
    }

    /// Passes on the finished chunks of the encoder.
    fn pass_on(&mut self) {
        self.events = 0;
        for chunk in self.encoder.take_output() {
            (self.output)(chunk.bytes);
        }
    }

    /// Passes on the last chunks, with the notes of the import in `info` if there are any.
    fn finish(mut self, info: &RecordingInfo) {
        if !info.import_notes.is_empty() {
            self.encoder.update_info(info);
        }
        self.encoder.flush();
        self.pass_on();
    }
}

impl Sink for ChunkSink<'_> {
    fn event(&mut self, event: &Event) {
        self.encoder.event(event);
        self.events += 1;
        if self.events == EVENTS_PER_OUTPUT {
            self.pass_on();
        }
    }

    fn inner_sink(&mut self) -> Option<&mut dyn Sink> {
        Some(&mut self.encoder)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use vramscope_formats::{ImportPhase, ignore_progress};
    use vramscope_trace::Recording;

    use super::*;

    /// Reads a file of `tests/data`.
    fn snapshot(name: &str) -> Vec<u8> {
        let path = format!("{}/../../tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read(path).expect("the snapshot can be read")
    }

    /// Pushes a file in pieces of `piece` bytes.
    fn job(file: &[u8], piece: usize) -> ImportJob {
        let mut job = ImportJob::new("run.pickle", Some(file.len() as u64));
        for piece in file.chunks(piece) {
            job.push(piece).expect("the file is valid");
        }
        job
    }

    #[test]
    fn pieces_of_any_size_give_the_same_recording() {
        for name in ["ring.pickle.zst", "late.pickle.gz"] {
            let file = snapshot(name);
            let mut expected = None;
            for piece in [file.len(), 1000, 1] {
                let mut recording = Recording::new();
                let mut bytes = Vec::new();
                let mut output = |part: Vec<u8>| {
                    recording.push(&part).expect("the recording is valid");
                    bytes.extend(part);
                };
                let summary = job(&file, piece).finish(&mut ignore_progress, &mut output).expect("the file is valid");
                assert_eq!(summary.map(|summary| summary.events), Some(recording.events()));
                assert_eq!(expected.get_or_insert(bytes.clone()), &bytes, "{name} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn progress_reaches_the_end_and_stops_the_import() {
        let file = snapshot("ring.pickle.zst");
        let job_of = || job(&file, 100);
        let reading = job_of().progress();
        assert_eq!((reading.phase, reading.read_bytes), (ImportPhase::Reading, file.len() as u64));
        assert!(reading.entries > 0 && reading.fraction > 0.0);
        let mut last = reading;
        let mut progress = |progress: &ImportProgress| {
            assert!(progress.fraction >= last.fraction && progress.phase >= last.phase);
            last = *progress;
            ControlFlow::Continue(())
        };
        let summary = job_of().finish(&mut progress, &mut |_| {}).expect("the file is valid");
        let summary = summary.expect("the file is no recording");
        assert_eq!((last.fraction, last.entries), (1.0, summary.events));
        let stopped = job_of().finish(&mut |_| ControlFlow::Break(()), &mut |_| {});
        assert_eq!(stopped, Err(ImportError::Cancelled));
    }

    #[test]
    fn compressed_recordings_are_unpacked_unchanged() {
        let mut encoder = Encoder::new(&RecordingInfo::default());
        encoder.flush();
        let recording = encoder.take_output().into_iter().flat_map(|chunk| chunk.bytes).collect::<Vec<_>>();
        for file in [gzip(&recording), recording.clone()] {
            let mut unpacked = Vec::new();
            let summary = job(&file, 5).finish(&mut ignore_progress, &mut |part| unpacked.extend(part));
            assert_eq!((summary, unpacked), (Ok(None), recording.clone()));
        }
    }

    /// Packs bytes with gzip.
    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("writing to memory does not fail")
    }

    #[test]
    fn files_that_are_no_snapshot_are_refused() {
        let finish = |file: &[u8]| job(file, 3).finish(&mut ignore_progress, &mut |_| {});
        let text = |file: &[u8]| finish(file).expect_err("it is no recording").to_string();
        assert_eq!(text(b""), "the file is empty; save or copy it again");
        assert_eq!(text(b"\x89PNG"), "this is a picture (PNG): record the program's memory, and open the recording");
        assert!(matches!(finish(b"PK\x03\x04"), Err(ImportError::Invalid(_))));
        assert!(matches!(finish(b"\x1f\x8b\x08"), Err(ImportError::Invalid(_))));
        assert!(matches!(finish(b"{}"), Err(ImportError::Invalid(_))));
    }
}
