//! The messages that carry a process's chunks, and their headers.

use async_nats::HeaderMap;
use bytes::Bytes;

/// Header with the number of a message; the messages of a process are numbered from 0.
const NUMBER: &str = "Vramscope-Number";
/// Header with the number of the chunk after the message's chunks.
const NEXT: &str = "Vramscope-Next";
/// Header with the number of events that are missing before the message's chunks.
const MISSED: &str = "Vramscope-Missed";
/// Header with the value of [`ChunkMessage::stored`]: the broker had acknowledged all messages of
/// the process with lower numbers.
const STORED: &str = "Vramscope-Stored";
/// Header with the message's [flags](ChunkMessage), separated by spaces.
const FLAGS: &str = "Vramscope-Flags";
/// The broker's header by which it recognizes a message that it already has.
const MESSAGE_ID: &str = "Nats-Msg-Id";
/// Names of the flags in [`FLAGS`]: of [`ChunkMessage::is_start`], [`ChunkMessage::continues`] and
/// [`ChunkMessage::is_end`].
const FLAG_NAMES: [&str; 3] = ["start", "continues", "end"];

/// A part of a process's recording, as the broker stores it.
///
/// The messages of a process are numbered. A message that is sent again has its number and content,
/// so readers recognize repetitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkMessage {
    /// Number of the message; the messages of a process are numbered from 0.
    pub number: u64,
    /// Number of the chunk after the message's chunks.
    pub next: u64,
    /// Number of events that are missing before the message's chunks, because the broker was too
    /// slow.
    pub missed_events: u64,
    /// Number below which the broker had acknowledged all messages when this message was first
    /// sent. The process sends the other messages again until they are acknowledged.
    pub stored: u64,
    /// True if the message's chunks begin with the header and all definitions, so that a reader can
    /// begin here.
    pub is_start: bool,
    /// True if the chunks continue in the next message.
    pub continues: bool,
    /// True if the recording is complete; such a message has no chunks.
    pub is_end: bool,
    /// Whole chunks, or a part of them if a message would be too large.
    pub payload: Bytes,
}

impl ChunkMessage {
    /// Returns the headers of the message. `identity` is the identity of the process's recording.
    #[must_use]
    pub fn headers(&self, identity: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(MESSAGE_ID, format!("{identity}-{}", self.number));
        headers.insert(NUMBER, self.number.to_string());
        headers.insert(NEXT, self.next.to_string());
        headers.insert(STORED, self.stored.to_string());
        if self.missed_events > 0 {
            headers.insert(MISSED, self.missed_events.to_string());
        }
        let flags = FLAG_NAMES.into_iter().zip([self.is_start, self.continues, self.is_end]);
        let flags: Vec<&str> = flags.filter_map(|(name, is_set)| is_set.then_some(name)).collect();
        if !flags.is_empty() {
            headers.insert(FLAGS, flags.join(" "));
        }
        headers
    }

    /// Reads a message from its headers and payload.
    ///
    /// # Errors
    /// If a header is missing or invalid. The text says which.
    pub fn parse(headers: Option<&HeaderMap>, payload: Bytes) -> Result<Self, String> {
        let headers = headers.ok_or("the message has no headers")?;
        let number = |name: &str| {
            let value = headers.get(name).map(|value| value.as_str());
            value.map(|value| value.parse().map_err(|_| format!("header {name} is not a number"))).transpose()
        };
        let required = |name: &str| number(name)?.ok_or_else(|| format!("header {name} is missing"));
        let flags = headers.get(FLAGS).map_or("", |value| value.as_str());
        let [is_start, continues, is_end] = FLAG_NAMES.map(|name| flags.split(' ').any(|flag| flag == name));
        Ok(Self {
            number: required(NUMBER)?,
            next: required(NEXT)?,
            missed_events: number(MISSED)?.unwrap_or(0),
            stored: required(STORED)?,
            is_start,
            continues,
            is_end,
            payload,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_their_headers() {
        let plain =
            ChunkMessage { number: 7, next: 42, payload: Bytes::from_static(b"abc"), ..ChunkMessage::default() };
        for message in [
            plain.clone(),
            ChunkMessage { missed_events: 3, stored: 5, is_start: true, continues: true, ..plain.clone() },
            ChunkMessage { is_end: true, payload: Bytes::new(), ..plain },
        ] {
            let headers = message.headers("id");
            assert_eq!(headers.get(MESSAGE_ID).map(|id| id.as_str()), Some("id-7"));
            assert_eq!(ChunkMessage::parse(Some(&headers), message.payload.clone()), Ok(message));
        }
    }

    #[test]
    fn messages_without_numbers_are_refused() {
        let check = |headers: &[(&str, &str)], expected: &str| {
            let mut map = HeaderMap::new();
            headers.iter().for_each(|&(name, value)| map.insert(name, value));
            assert_eq!(ChunkMessage::parse(Some(&map), Bytes::new()), Err(expected.to_owned()));
        };
        check(&[], "header Vramscope-Number is missing");
        check(&[(NUMBER, "1")], "header Vramscope-Next is missing");
        check(&[(NUMBER, "-1"), (NEXT, "1")], "header Vramscope-Number is not a number");
        check(&[(NUMBER, "1"), (NEXT, "1")], "header Vramscope-Stored is missing");
        check(&[(NUMBER, "1"), (NEXT, "1"), (STORED, "-1")], "header Vramscope-Stored is not a number");
        let missed = [(NUMBER, "1"), (NEXT, "1"), (STORED, "0"), (MISSED, "many")];
        check(&missed, "header Vramscope-Missed is not a number");
        assert_eq!(ChunkMessage::parse(None, Bytes::new()), Err("the message has no headers".to_owned()));
    }
}
