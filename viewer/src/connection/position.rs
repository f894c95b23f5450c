//! The identity of the followed recording, and the position at which a new connection resumes its
//! stream.

use vramscope_trace::live_protocol::StreamNote;

/// Delay in milliseconds before the first reconnection. It doubles with each failure up to
/// [`MAX_RETRY_MS`].
const RETRY_MS: f64 = 500.0;
/// Maximum delay in milliseconds between reconnections, before it is varied at random by up to 25%.
const MAX_RETRY_MS: f64 = 15_000.0;
/// Maximum length of a recording's identity in bytes. A longer identity is ignored, and the stream
/// then cannot resume.
const MAX_IDENTITY: usize = 64;

/// The part of a live recording that a connection loads: the newest part (`Recent`) or `All` of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum History {
    /// The newest 16 MiB that the server holds in memory.
    #[default]
    Recent,
    /// Everything that the server has in its file or in memory.
    All,
}

/// The result of a reconnection: how the new stream continues the recording on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// The stream continues where the previous connection ended.
    Resumed,
    /// The stream is the same recording, but starts again with a header chunk and a full state.
    Restarted,
    /// The stream is another recording.
    OtherRecording,
    /// Not known, because the server sent no identity; the header chunk in the first binary message
    /// tells recordings apart instead.
    Unknown,
}

/// The identity of the live recording that the page follows, and the position up to which the page
/// has decoded its stream.
#[derive(Clone, Debug, Default)]
pub struct StreamPosition {
    /// The requested part of the recording.
    pub history: History,
    /// Identity of the recording; `None` until the server has sent it.
    recording: Option<String>,
    /// Stream position after the last decoded message, a number chosen by the server; `None` before
    /// the first.
    next: Option<u64>,
    /// Whether the next connection starts at the newest full state instead of resuming.
    skips_ahead: bool,
    /// Number of reconnections since a stream was last shown.
    failures: i32,
}

impl StreamPosition {
    /// Creates the position before the first message of a recording that is not known yet.
    /// `history` is the part of it to request.
    pub fn new(history: History) -> Self {
        Self { history, ..Self::default() }
    }

    /// Returns the query string for the WebSocket's URL, without `?`: the requested part of the
    /// recording, and the position to resume from if it is known.
    pub fn query(&self) -> String {
        let history = match self.history {
            History::Recent => "history=recent&",
            History::All => "history=all&",
        };
        if self.skips_ahead {
            return "notes=1".to_owned();
        }
        match (&self.recording, self.next) {
            (Some(recording), Some(next)) => format!("{history}notes=1&resume={recording}:{next}"),
            _ => format!("{history}notes=1"),
        }
    }

    /// Returns true once the server has sent the recording's identity. Without it, a stream cannot
    /// resume.
    pub fn is_identified(&self) -> bool {
        self.recording.is_some()
    }

    /// Returns true if the next connection asks the server to resume after the last decoded
    /// message; false before the first is decoded and after [`skip_ahead`](Self::skip_ahead).
    fn requests_resume(&self) -> bool {
        self.next.is_some() && !self.skips_ahead
    }

    /// Makes the next connection start at the recording's newest full state instead of resuming.
    pub fn skip_ahead(&mut self) {
        self.skips_ahead = true;
    }

    /// Returns the result of a reconnection, according to the first note of the new stream;
    /// `Unknown` if the note or the identity in it is missing.
    pub fn resume_outcome(&self, first: Option<&StreamNote>) -> ResumeOutcome {
        let Some(note) = first else { return ResumeOutcome::Unknown };
        match (&self.recording, &note.recording) {
            (Some(known), Some(found)) if known != found => ResumeOutcome::OtherRecording,
            (Some(_), Some(_)) if note.resumed == Some(true) && self.requests_resume() => ResumeOutcome::Resumed,
            (Some(_), Some(_)) => ResumeOutcome::Restarted,
            _ => ResumeOutcome::Unknown,
        }
    }

    /// Stores the recording's identity from a note. An identity other than letters and digits, or
    /// longer than 64 bytes, counts as missing. A change of the identity resets the position.
    pub fn identify(&mut self, note: &StreamNote) {
        let is_valid = |text: &String| {
            !text.is_empty() && text.len() <= MAX_IDENTITY && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let found = note.recording.clone().filter(is_valid);
        if found != self.recording {
            (self.recording, self.next) = (found, None);
        }
    }

    /// Stores the stream position after the last decoded message, `next` in the server's note; the
    /// next connection resumes there.
    pub fn decoded_up_to(&mut self, next: u64) {
        self.next = Some(next);
    }

    /// Resets the reconnection delay after a successful connection.
    pub fn connected(&mut self) {
        self.failures = 0;
    }

    /// Returns the delay before the next reconnection in milliseconds, and counts a failure: the
    /// next delay is twice as long, up to 15 seconds.
    ///
    /// `random`, from 0 to 1, varies the delay by up to 25%, so that many pages do not reconnect at
    /// the same moment.
    pub fn next_retry_ms(&mut self, random: f64) -> i32 {
        let delay = (RETRY_MS * 2f64.powi(self.failures.min(16))).min(MAX_RETRY_MS);
        self.failures = self.failures.saturating_add(1);
        (delay * (0.75 + 0.5 * random)) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first note of a stream.
    fn note(recording: &str, resumed: bool) -> StreamNote {
        StreamNote { recording: Some(recording.to_owned()), resumed: Some(resumed), ..StreamNote::default() }
    }

    #[test]
    fn query_resumes_at_the_decoded_position() {
        let mut position = StreamPosition::new(History::Recent);
        assert_eq!(position.query(), "history=recent&notes=1");
        position.identify(&note("0af3", false));
        assert_eq!(position.query(), "history=recent&notes=1", "nothing has been decoded");
        position.decoded_up_to(17);
        assert_eq!(position.query(), "history=recent&notes=1&resume=0af3:17");
        position.identify(&note("0af3", true));
        assert_eq!(position.query(), "history=recent&notes=1&resume=0af3:17");
        position.identify(&note("77", false));
        assert_eq!(position.query(), "history=recent&notes=1", "nothing of the other recording has been decoded");
        assert_eq!(StreamPosition::new(History::All).query(), "history=all&notes=1");
        position.skip_ahead();
        assert_eq!(position.query(), "notes=1");
    }

    #[test]
    fn first_note_determines_the_resume_outcome() {
        let mut known = StreamPosition::new(History::Recent);
        known.identify(&note("aa", false));
        let fresh = known.clone();
        known.decoded_up_to(3);
        let check = |position: &StreamPosition, first: Option<StreamNote>, expected| {
            assert_eq!(position.resume_outcome(first.as_ref()), expected);
        };
        check(&known, Some(note("aa", true)), ResumeOutcome::Resumed);
        check(&known, Some(note("aa", false)), ResumeOutcome::Restarted);
        check(&known, Some(note("bb", false)), ResumeOutcome::OtherRecording);
        check(&known, Some(note("bb", true)), ResumeOutcome::OtherRecording);
        check(&known, None, ResumeOutcome::Unknown);
        check(&known, Some(StreamNote::default()), ResumeOutcome::Unknown);
        check(&fresh, Some(note("aa", true)), ResumeOutcome::Restarted);
        known.skip_ahead();
        check(&known, Some(note("aa", false)), ResumeOutcome::Restarted);
        check(&StreamPosition::default(), Some(note("aa", true)), ResumeOutcome::Unknown);
    }

    #[test]
    fn invalid_identities_never_reach_the_query() {
        for text in ["", "a&history=all", "a:1", "a b", "é", &"a".repeat(65)] {
            let mut position = StreamPosition::new(History::Recent);
            position.identify(&note(text, false));
            position.decoded_up_to(1);
            assert_eq!(position.query(), "history=recent&notes=1", "{text:?}");
        }
    }

    #[test]
    fn retry_delay_doubles_up_to_a_limit() {
        let mut position = StreamPosition::default();
        let delays: Vec<i32> = (0..8).map(|_| position.next_retry_ms(0.5)).collect();
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 15_000, 15_000, 15_000]);
        position.connected();
        assert_eq!((position.next_retry_ms(0.0), position.next_retry_ms(1.0)), (375, 1250));
        for _ in 0..1000 {
            assert!(position.next_retry_ms(1.0) <= 18_750);
        }
    }
}
