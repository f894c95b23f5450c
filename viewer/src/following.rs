//! Which recording a page follows, how far it has come in it, and what it asks the server for: the client's side of `docs/live.md`.

/// How long after a lost connection the next is tried, at first and at most.
const RETRY_MS: f64 = 500.0;
const LONGEST_RETRY_MS: f64 = 15_000.0;
/// Letters of a recording's identity at most.
const LONGEST_IDENTITY: usize = 64;

/// How much of what was recorded before somebody wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum History {
    /// The newest part.
    #[default]
    Recent,
    /// All of it.
    All,
}

/// What a server says of the bytes that follow. Every field may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// The recording's identity.
    pub recording: Option<String>,
    /// Whether the stream goes on where it was asked to.
    pub resumed: bool,
    /// The number of the chunk after the next bytes.
    pub next: Option<u64>,
}

/// What the first message of a new connection means for who followed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reunion {
    /// It goes on where it ended.
    GoesOn,
    /// It is the same recording, from some other place on.
    BeginsAgain,
    /// It is another recording.
    Another,
    /// The server does not say; the bytes have to.
    Unsaid,
}

/// A recording that is followed.
#[derive(Clone, Debug, Default)]
pub struct Following {
    /// How much of it is wanted.
    pub history: History,
    recording: Option<String>,
    next: Option<u64>,
    /// Whether what lies between is to be left out.
    skips: bool,
    failures: i32,
}

impl Following {
    /// Begins to follow whatever is there.
    #[must_use]
    pub fn new(history: History) -> Self {
        Self { history, ..Self::default() }
    }

    /// What to ask of `ws`.
    #[must_use]
    pub fn query(&self) -> String {
        let history = match self.history {
            History::Recent => "history=recent&",
            History::All => "history=all&",
        };
        if self.skips {
            return "notes=1".to_owned();
        }
        match (&self.recording, self.next) {
            (Some(recording), Some(next)) => format!("{history}notes=1&resume={recording}:{next}"),
            _ => format!("{history}notes=1"),
        }
    }

    /// Whether the recording's identity is known, so that a later connection can be told from another program's.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.recording.is_some()
    }

    fn asks_to_resume(&self) -> bool {
        self.next.is_some() && !self.skips
    }

    /// Leaves out what has not come yet: the next connection begins with the newest full state.
    pub fn leave_out(&mut self) {
        self.skips = true;
    }

    /// What a connection's first message means that was made to go on.
    #[must_use]
    pub fn reunion(&self, first: Option<&Note>) -> Reunion {
        match (&self.recording, first.and_then(|note| note.recording.as_ref())) {
            (Some(known), Some(found)) if known != found => Reunion::Another,
            (Some(_), Some(_)) if first.is_some_and(|note| note.resumed) && self.asks_to_resume() => Reunion::GoesOn,
            (Some(_), Some(_)) => Reunion::BeginsAgain,
            _ => Reunion::Unsaid,
        }
    }

    /// Takes the identity from a connection's first note. What is not of a form that can stand in an address is none.
    pub fn identify(&mut self, note: &Note) {
        let is_identity = |text: &String| {
            !text.is_empty() && text.len() <= LONGEST_IDENTITY && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        let found = note.recording.clone().filter(is_identity);
        if found != self.recording {
            (self.recording, self.next) = (found, None);
        }
    }

    /// The bytes have been taken of which a note said that this chunk comes next.
    pub fn taken(&mut self, next: u64) {
        self.next = Some(next);
    }

    /// There is a connection that is good for something.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// How long to wait before the next try: longer each time, and not the same for all, which `chance`, from 0 to 1, sees to.
    pub fn retry_ms(&mut self, chance: f64) -> i32 {
        let wait = (RETRY_MS * 2f64.powi(self.failures.min(16))).min(LONGEST_RETRY_MS);
        self.failures = self.failures.saturating_add(1);
        (wait * (0.75 + 0.5 * chance)) as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(recording: &str, resumed: bool) -> Note {
        Note { recording: Some(recording.to_owned()), resumed, next: None }
    }

    #[test]
    fn what_is_asked_for_goes_on_where_it_ended() {
        let mut following = Following::new(History::Recent);
        assert_eq!(following.query(), "history=recent&notes=1");
        following.identify(&note("0af3", false));
        assert_eq!(following.query(), "history=recent&notes=1", "nothing has come of it");
        following.taken(17);
        assert_eq!(following.query(), "history=recent&notes=1&resume=0af3:17");
        following.identify(&note("0af3", true));
        assert_eq!(following.query(), "history=recent&notes=1&resume=0af3:17");
        following.identify(&note("77", false));
        assert_eq!(following.query(), "history=recent&notes=1", "of another recording nothing has come");
        assert_eq!(Following::new(History::All).query(), "history=all&notes=1");
        following.leave_out();
        assert_eq!(following.query(), "notes=1");
    }

    #[test]
    fn what_a_first_message_means() {
        let mut known = Following::new(History::Recent);
        known.identify(&note("aa", false));
        let fresh = known.clone();
        known.taken(3);
        let check = |of: &Following, first: Option<Note>, expected| assert_eq!(of.reunion(first.as_ref()), expected);
        check(&known, Some(note("aa", true)), Reunion::GoesOn);
        check(&known, Some(note("aa", false)), Reunion::BeginsAgain);
        check(&known, Some(note("bb", false)), Reunion::Another);
        check(&known, Some(note("bb", true)), Reunion::Another);
        check(&known, None, Reunion::Unsaid);
        check(&known, Some(Note::default()), Reunion::Unsaid);
        check(&fresh, Some(note("aa", true)), Reunion::BeginsAgain);
        known.leave_out();
        check(&known, Some(note("aa", false)), Reunion::BeginsAgain);
        check(&Following::default(), Some(note("aa", true)), Reunion::Unsaid);
    }

    #[test]
    fn an_identity_cannot_ask_for_something_else() {
        for text in ["", "a&history=all", "a:1", "a b", "é", &"a".repeat(65)] {
            let mut following = Following::new(History::Recent);
            following.identify(&note(text, false));
            following.taken(1);
            assert_eq!(following.query(), "history=recent&notes=1", "{text:?}");
        }
    }

    #[test]
    fn it_is_tried_less_and_less_often() {
        let mut following = Following::default();
        let waits: Vec<i32> = (0..8).map(|_| following.retry_ms(0.5)).collect();
        assert_eq!(waits, [500, 1000, 2000, 4000, 8000, 15_000, 15_000, 15_000]);
        following.succeeded();
        assert_eq!((following.retry_ms(0.0), following.retry_ms(1.0)), (375, 1250));
        for _ in 0..1000 {
            assert!(following.retry_ms(1.0) <= 18_750);
        }
    }
}
