//! What a file is, found out while its bytes come.

use std::fmt;

use vramscope_formats::{Limits, Source, sniff, unpack};
use vramscope_trace::Recording;

/// A file whose bytes are coming.
pub struct Opening {
    #[allow(dead_code)]
    name: String,
    taken: Taken,
}

/// What has come so far.
enum Taken {
    /// The beginning of a recording of our own: taken in at once, piece by piece. The error, once there is one.
    Recording(Box<Recording>, Option<String>),
    /// Anything else, which is read when it is whole.
    Bytes(Vec<u8>),
}

/// A recording, and what is wrong with the file behind it.
pub struct Opened {
    /// The recording; whole, or what comes before the error.
    pub recording: Recording,
    /// What is wrong, and where.
    pub warning: Option<String>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} events, {:?}", self.recording.end_event(), self.warning)
    }
}

impl Opening {
    /// A file called `name`, before its first byte.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), taken: Taken::Bytes(Vec::new()) }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        match &mut self.taken {
            Taken::Recording(recording, error) => take(recording, error, bytes),
            Taken::Bytes(so_far) => {
                so_far.extend_from_slice(bytes);
                if sniff(so_far) == Some(Source::Trace) {
                    let (mut recording, mut error) = (Box::new(Recording::new()), None);
                    take(&mut recording, &mut error, so_far);
                    self.taken = Taken::Recording(recording, error);
                }
            }
        }
    }

    /// The recording that the file is or holds.
    ///
    /// # Errors
    /// Where there is nothing to be shown: what is wrong with the file, and where in it.
    pub fn finish(self) -> Result<Opened, String> {
        match self.taken {
            Taken::Recording(recording, error) => finish(*recording, error),
            Taken::Bytes(bytes) if bytes.is_empty() => Err("the file is empty".to_owned()),
            Taken::Bytes(bytes) => {
                let limits = Limits::default();
                let bytes = unpack(&bytes, &limits).map_err(|error| error.to_string())?;
                match sniff(&bytes) {
                    Some(Source::Trace) => {
                        let (mut recording, mut error) = (Recording::new(), None);
                        take(&mut recording, &mut error, &bytes);
                        finish(recording, error)
                    }
                    Some(Source::TorchPickle | Source::TorchJson) => Err("not yet".to_owned()),
                    None => Err(
                        "neither a recording nor a PyTorch memory snapshot: what it begins with, at byte 0, is unknown"
                            .to_owned(),
                    ),
                }
            }
        }
    }
}

fn take(recording: &mut Recording, error: &mut Option<String>, bytes: &[u8]) {
    if error.is_none() {
        *error = recording.push(bytes).err().map(|error| error.to_string());
    }
}

fn finish(recording: Recording, error: Option<String>) -> Result<Opened, String> {
    let warning = error.or_else(|| recording.finish().err().map(|error| error.to_string()));
    match warning {
        Some(warning) if recording.end_event() == recording.first_event() => Err(warning),
        warning => Ok(Opened { recording, warning }),
    }
}
