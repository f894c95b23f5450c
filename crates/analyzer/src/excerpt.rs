//! Writes a part of a recording, or all of it without names.

use std::ops::Range;

use vramscope_pool::RecordedConf;
use vramscope_trace::{FormatError, IndexedEncoder, RangeCopy, Recording, Redactor};

/// The encoder of an excerpt, with names or with placeholders.
enum Writer {
    Plain(Box<IndexedEncoder>),
    Redacted(Box<Redactor<IndexedEncoder>>),
}

impl Writer {
    /// Returns the encoder.
    fn encoder(&mut self) -> &mut IndexedEncoder {
        match self {
            Self::Plain(encoder) => encoder,
            Self::Redacted(redactor) => redactor.sink_mut(),
        }
    }
}

/// What a step of an [`ExcerptJob`] has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExcerptStep {
    /// A part was written: the number of events written so far, and of all events to write.
    Written(u64, u64),
    /// Nothing: these byte ranges of the recording must be supplied first.
    Missing(Vec<Range<u64>>),
    /// The rest was written.
    Done,
}

/// Writes a part of a recording as a recording of its own, a step at a time.
pub struct ExcerptJob {
    copy: RangeCopy,
    /// `None` before the first step.
    writer: Option<Writer>,
    is_redacted: bool,
}

impl ExcerptJob {
    /// Creates a job for the part of a recording between two moments; with `is_redacted`, names are
    /// replaced by placeholders.
    #[must_use]
    pub fn new(recording: &Recording, (from, to): (u64, u64), is_redacted: bool) -> Self {
        Self { copy: RangeCopy::new(recording, from, to), writer: None, is_redacted }
    }

    /// Writes the next part, at most one chunk of events, and appends its bytes to `output`.
    ///
    /// # Errors
    /// If the recording is damaged.
    pub fn step(&mut self, recording: &Recording, output: &mut Vec<Vec<u8>>) -> Result<ExcerptStep, FormatError> {
        let missing = self.copy.missing(recording);
        if !missing.is_empty() {
            return Ok(ExcerptStep::Missing(missing));
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => {
                let info = self.copy.begin(recording)?;
                none.insert(if self.is_redacted {
                    // Keep only known options: others may contain any text, also names.
                    let known = RecordedConf::parse(&info.alloc_conf).settings.to_conf();
                    let redactor = Redactor::new(&info, known, IndexedEncoder::new);
                    Writer::Redacted(Box::new(redactor))
                } else {
                    Writer::Plain(Box::new(IndexedEncoder::new(&info)))
                })
            }
        };
        let has_more = match writer {
            Writer::Plain(encoder) => self.copy.step(recording, encoder.as_mut())?,
            Writer::Redacted(redactor) => self.copy.step(recording, redactor.as_mut())?,
        };
        if has_more {
            output.extend(writer.encoder().take_output());
            let (done, all) = self.copy.progress();
            return Ok(ExcerptStep::Written(done, all));
        }
        output.extend(writer.encoder().finish());
        Ok(ExcerptStep::Done)
    }
}
