//! Removes the names from a recording, so that it can be shared without revealing the program.

use vramscope_pool::RecordedConf;
use vramscope_trace::{Decoder, FormatError, RecordingInfo, Redactor, Sink};

/// Creates a [`Redactor`] for the recording that `info` describes. `begin` receives the redacted
/// description and creates the sink.
///
/// Unknown settings are dropped, since they may contain any text.
pub fn redactor<S: Sink>(info: &RecordingInfo, begin: impl FnOnce(&RecordingInfo) -> S) -> Redactor<S> {
    let alloc_conf = RecordedConf::parse(&info.alloc_conf).settings.to_conf();
    Redactor::new(info, alloc_conf, begin)
}

/// Redacts the recording whose bytes are `pieces`, split anywhere, and passes it to the sink that
/// `begin` creates.
///
/// At most one piece is held. `info` must be the final description of the recording: a recording
/// may contain several header chunks, of which the last one counts. An incomplete chunk at the end
/// is dropped.
///
/// ```
/// use vramscope_formats::export;
/// use vramscope_trace::{Encoder, RecordingInfo, Recording};
///
/// let info = RecordingInfo { source: "secret.py".to_owned(), ..RecordingInfo::default() };
/// let mut encoder = Encoder::new(&info);
/// encoder.flush();
/// let pieces = encoder.take_output().into_iter().map(|chunk| Ok(chunk.bytes));
///
/// let mut redacted = export::redact(&info, pieces, Encoder::new).unwrap();
/// redacted.flush();
/// let mut recording = Recording::new();
/// for chunk in redacted.take_output() {
///     recording.push(&chunk.bytes).unwrap();
/// }
/// assert_eq!(recording.info().source, "redacted");
/// ```
///
/// # Errors
/// If the bytes are not a recording, and any error among the pieces.
pub fn redact<S: Sink>(
    info: &RecordingInfo,
    pieces: impl IntoIterator<Item = Result<Vec<u8>, FormatError>>,
    begin: impl FnOnce(&RecordingInfo) -> S,
) -> Result<S, FormatError> {
    let mut redactor = redactor(info, begin);
    let mut decoder = Decoder::new();
    for piece in pieces {
        decoder.push(&piece?);
        while let Some(item) = decoder.next_item()? {
            redactor.pass(&item);
        }
    }
    Ok(redactor.into_inner())
}
