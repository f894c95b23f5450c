//! Splits the JSON of a profiler trace into its events while its bytes arrive.

use std::ops::Range;

/// The key of the list of events.
pub(super) const EVENTS_KEY: &[u8] = b"traceEvents";
/// Maximum length of an event and of a value beside the list of events, in bytes.
const MAX_ITEM_BYTES: usize = 16 << 20;
/// Maximum nesting of an item.
const MAX_DEPTH: u32 = 100;

/// A part of a trace, as ranges of the buffer that was passed to [`Splitter::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// A key of the outermost object with its value.
    Value { key: Range<usize>, value: Range<usize> },
    /// An event.
    Event(Range<usize>),
}

/// Why a text is no trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SplitError {
    /// A byte that JSON does not allow here.
    #[error("not JSON: {0:?} where {1} was expected")]
    Unexpected(char, &'static str),
    /// An event or value is longer or deeper than any of a trace.
    #[error("an event of the trace is longer than 16 MiB or nested more than 100 times")]
    TooLarge,
}

/// The position in the structure of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    /// Before a key of the outermost object, or its end.
    Key,
    /// Before an event of the list, or its end.
    Events,
    End,
}

/// The progress within an item that is not complete yet.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    /// Number of bytes of the item that were looked at.
    done: usize,
    depth: u32,
    in_string: bool,
    is_escaped: bool,
}

/// Finds the events of a trace: the items of the list `traceEvents` of the outermost object.
#[derive(Debug)]
pub(super) struct Splitter {
    state: State,
    scan: Scan,
    /// The key whose value comes next, relative to the item's start.
    key: Option<Range<usize>>,
}

impl Splitter {
    /// Starts before the first byte of a text.
    pub(super) fn new() -> Self {
        Self { state: State::Start, scan: Scan::default(), key: None }
    }

    /// Returns true once the outermost object has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.state == State::End
    }

    /// Returns true if the next item is an event.
    pub(super) fn is_in_events(&self) -> bool {
        self.state == State::Events
    }

    /// Returns the next item of `buffer` from `at` on, and moves `at` behind it. `None` if the
    /// buffer ends before the item does; the bytes from `at` on are needed again.
    pub(super) fn next(&mut self, buffer: &[u8], at: &mut usize) -> Result<Option<Item>, SplitError> {
        loop {
            if self.scan.done == 0 && self.key.is_none() {
                let is_between = |byte: &u8| match self.state {
                    // Some programs write a byte order mark before the text.
                    State::Start => byte.is_ascii_whitespace() || matches!(byte, 0xef | 0xbb | 0xbf),
                    State::Key | State::Events => byte.is_ascii_whitespace() || *byte == b',',
                    State::End => true,
                };
                *at += buffer[*at..].iter().take_while(|byte| is_between(byte)).count();
            }
            let Some(&first) = buffer.get(*at) else { return Ok(None) };
            match (self.state, first) {
                (State::Start, b'{') => {
                    *at += 1;
                    self.state = State::Key;
                }
                (State::Key, b'}') if self.key.is_none() => {
                    *at += 1;
                    self.state = State::End;
                }
                (State::Key, b'"') => match self.value(&buffer[*at..])? {
                    Some(Found::Events(len)) => {
                        *at += len;
                        self.state = State::Events;
                    }
                    Some(Found::Value { key, value }) => {
                        let of_buffer = |range: Range<usize>| *at + range.start..*at + range.end;
                        let (key, value) = (of_buffer(key), of_buffer(value));
                        *at = value.end;
                        return Ok(Some(Item::Value { key, value }));
                    }
                    None => return Ok(None),
                },
                (State::Events, b']') if self.scan.done == 0 => {
                    *at += 1;
                    self.state = State::Key;
                }
                (State::Events, b'{') => {
                    let Some(len) = self.item_len(&buffer[*at..])? else { return Ok(None) };
                    let start = *at;
                    *at += len;
                    return Ok(Some(Item::Event(start..start + len)));
                }
                (State::Start, byte) => return Err(SplitError::Unexpected(byte.into(), "an object")),
                (State::Key, byte) => return Err(SplitError::Unexpected(byte.into(), "a key")),
                (State::Events, byte) => return Err(SplitError::Unexpected(byte.into(), "an event")),
                (State::End, _) => return Ok(None),
            }
        }
    }

    /// Finds the key at the start of `text` and its value. `None` if the text ends before.
    fn value(&mut self, text: &[u8]) -> Result<Option<Found>, SplitError> {
        let key = match self.key.clone() {
            Some(key) => key,
            None => {
                let Some(len) = self.item_len(text)? else { return Ok(None) };
                self.key.insert(1..len - 1).clone()
            }
        };
        let mut start = key.end + 1;
        for wanted in [b':', 0] {
            start += text[start..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            match text.get(start) {
                None => return Ok(None),
                Some(&byte) if wanted == b':' && byte != b':' => {
                    return Err(SplitError::Unexpected(byte.into(), "a colon"));
                }
                Some(_) if wanted == b':' => start += 1,
                Some(_) => {}
            }
        }
        if text[start] == b'[' && text[key.clone()] == *EVENTS_KEY {
            self.key = None;
            return Ok(Some(Found::Events(start + 1)));
        }
        let Some(len) = self.item_len(&text[start..])? else { return Ok(None) };
        self.key = None;
        Ok(Some(Found::Value { key, value: start..start + len }))
    }

    /// Returns the length of the value at the start of `text`; `None` if the text ends before.
    fn item_len(&mut self, text: &[u8]) -> Result<Option<usize>, SplitError> {
        let scan = &mut self.scan;
        while let Some(&byte) = text.get(scan.done) {
            if scan.in_string {
                match byte {
                    _ if scan.is_escaped => scan.is_escaped = false,
                    b'\\' => scan.is_escaped = true,
                    b'"' => scan.in_string = false,
                    _ => {
                        let ordinary = &text[scan.done..];
                        let until = ordinary.iter().position(|byte| matches!(byte, b'"' | b'\\'));
                        scan.done += until.unwrap_or(ordinary.len());
                        if scan.done > MAX_ITEM_BYTES {
                            return Err(SplitError::TooLarge);
                        }
                        continue;
                    }
                }
            } else {
                match byte {
                    b'"' => scan.in_string = true,
                    b'{' | b'[' => scan.depth += 1,
                    b'}' | b']' if scan.depth > 0 => scan.depth -= 1,
                    // The end of a number, or of a word such as `true`.
                    b'}' | b']' | b',' if scan.depth == 0 => return Ok(Some(std::mem::take(scan).done)),
                    _ if scan.depth == 0 && byte.is_ascii_whitespace() => return Ok(Some(std::mem::take(scan).done)),
                    _ => {}
                }
            }
            let is_word = scan.depth == 0 && !scan.in_string && !matches!(byte, b'"' | b'}' | b']');
            scan.done += 1;
            if scan.done > MAX_ITEM_BYTES || scan.depth > MAX_DEPTH {
                return Err(SplitError::TooLarge);
            }
            if scan.depth == 0 && !scan.in_string && !is_word {
                return Ok(Some(std::mem::take(scan).done));
            }
        }
        Ok(None)
    }
}

/// What follows a key.
enum Found {
    /// The list of events, whose first item begins after this many bytes.
    Events(usize),
    Value {
        key: Range<usize>,
        value: Range<usize>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits a text that arrives in pieces of `piece` bytes; returns keys with their values, and
    /// events.
    fn split(text: &str, piece: usize) -> Result<(Vec<String>, bool), SplitError> {
        let (mut splitter, mut buffer, mut items) = (Splitter::new(), Vec::new(), Vec::new());
        for bytes in text.as_bytes().chunks(piece) {
            buffer.extend_from_slice(bytes);
            let mut at = 0;
            while let Some(item) = splitter.next(&buffer, &mut at)? {
                let part = |range: Range<usize>| String::from_utf8_lossy(&buffer[range]).into_owned();
                items.push(match item {
                    Item::Value { key, value } => format!("{}={}", part(key), part(value)),
                    Item::Event(event) => part(event),
                });
            }
            buffer.drain(..at);
        }
        Ok((items, splitter.is_complete()))
    }

    #[test]
    fn events_and_values_are_found_in_pieces_of_any_size() {
        let text = r#" { "a" : 1, "b":{"x":[1,"]"]}, "traceEvents" : [ {"n":"}\"{"} , {"m":{}} ], "c":"d" } "#;
        let expected = ["a=1", r#"b={"x":[1,"]"]}"#, r#"{"n":"}\"{"}"#, r#"{"m":{}}"#, r#"c="d""#];
        for piece in [1, 2, 3, 7, 1000] {
            let (items, is_complete) = split(text, piece).expect("it is JSON");
            assert_eq!(items, expected, "{piece}");
            assert!(is_complete);
        }
        for len in 0..text.len() - 3 {
            let (_, is_complete) = split(&text[..len], 5).expect("it is JSON");
            assert!(!is_complete, "cut after {len} bytes");
        }
    }

    #[test]
    fn other_texts_are_errors() {
        assert!(split("[]", 1).is_err());
        assert!(split(r#"{"traceEvents":[1]}"#, 1).is_err());
        assert!(split(r#"{"a" 1}"#, 3).is_err());
        assert!(split(&format!(r#"{{"a":{}"#, "[".repeat(200)), 50).is_err());
    }
}
