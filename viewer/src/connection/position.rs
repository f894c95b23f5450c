//! The followed recording, and the position at which a new connection resumes its stream.

use vramscope_trace::live_protocol::StreamNote;

/// Delay in milliseconds before the first reconnection; doubles with each failure up to
/// [`MAX_RETRY_MS`].
const RETRY_MS: f64 = 500.0;
/// Longest delay between reconnections in milliseconds, before it is varied at random by up to 25%.
const MAX_RETRY_MS: f64 = 15_000.0;
/// Longest identity of a recording, in characters; a longer identity is ignored, so that the stream
/// cannot resume.
const MAX_IDENTITY: usize = 64;

/// Which part of a live recording a connection loads: the newest part (`Recent`) or `All` of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum History {
    /// The newest 16 MiB that the server holds in memory.
    #[default]
    Recent,
    /// Everything that the server has in its file or in memory.
    All,
}

/// What a reconnection found: the stream resumed, the same recording from another position, another
/// recording, or a recording without identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// The stream continues where the previous connection ended.
    Resumed,
    /// The same recording, from another position.
    Restarted,
    /// Another recording.
    OtherRecording,
    /// No note identifies the recording; the first binary message describes its program.
    Unknown,
}

/// The live recording that the page follows, and the number of the chunk up to which the page has
/// decoded it, counted by the server.
#[derive(Clone, Debug, Default)]
pub struct StreamPosition {
    /// The requested part of the recording.
    pub history: History,
    /// Identity of the recording; `None` until the server has sent it.
    recording: Option<String>,
    /// Position after the last decoded message; `None` before the first.
    next: Option<u64>,
    /// Whether the next connection starts at the newest full state instead of resuming.
    skips_ahead: bool,
    /// Number of reconnections since the last stream was shown.
    failures: i32,
}

impl StreamPosition {
    /// Creates the position before the first byte of any recording.
    #[must_use]
    pub fn new(history: History) -> Self {
        Self { history, ..Self::default() }
    }

    /// Returns the query string for the WebSocket's URL: the requested part of the recording, and
    /// where to resume if that is known.
    #[must_use]
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

    /// Returns true once the server has sent the recording's identity, without which no stream
    /// resumes.
    #[must_use]
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

    /// Returns what a reconnection found, judged by the server's first note; `Unknown` without a
    /// note or an identity in it.
    #[must_use]
    pub fn resume_outcome(&self, first: Option<&StreamNote>) -> ResumeOutcome {
        let Some(note) = first else { return ResumeOutcome::Unknown };
        match (&self.recording, &note.recording) {
            (Some(known), Some(found)) if known != found => ResumeOutcome::OtherRecording,
            (Some(_), Some(_)) if note.resumed == Some(true) && self.requests_resume() => ResumeOutcome::Resumed,
            (Some(_), Some(_)) => ResumeOutcome::Restarted,
            _ => ResumeOutcome::Unknown,
        }
    }

    /// Stores the recording's identity from a note. An identity that does not fit into a query is
    /// ignored; a different one resets the position.
    pub fn identify(&mut self, note: &StreamNote) {
        let is_valid = |text: &String| {
            !text.is_empty() && text.len() <= MAX_IDENTITY && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let found = note.recording.clone().filter(is_valid);
        if found != self.recording {
            (self.recording, self.next) = (found, None);
        }
    }

    /// Stores `next`, the server's number of the chunk after the last decoded message; the next
    /// connection resumes there.
    pub fn decoded_up_to(&mut self, next: u64) {
        self.next = Some(next);
    }

    /// Resets the reconnection delay after a successful connection.
    pub fn connected(&mut self) {
        self.failures = 0;
    }

    /// Returns the delay before the next reconnection in milliseconds; it grows with each call.
    ///
    /// `random`, from 0 to 1, varies the delay, so that many pages do not reconnect at once.
    pub fn next_retry_ms(&mut self, random: f64) -> i32 {
        let delay = (RETRY_MS * 2f64.powi(self.failures.min(16))).min(MAX_RETRY_MS);
        self.failures = self.failures.saturating_add(1);
        (delay * (0.75 + 0.5 * random)) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
