//! Restores the order of one process's messages.
//!
//! A process sends several messages before the first is acknowledged, and repeats those that were
//! not. While a cluster elects a new leader, a message can be refused that is followed by stored
//! ones; its repetition then comes after them. So a missing message usually arrives soon, and those
//! after it wait.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::message::ChunkMessage;

/// The most messages that wait: more than a process sends before the first is acknowledged, but for
/// a full state in many parts.
const MAX_MESSAGES: usize = 512;
/// The most bytes of messages that wait: a full state and what was sent with it.
const MAX_BYTES: usize = 70 << 20;
/// How long messages wait for a missing one. Longer than a cluster takes to elect a leader and a
/// process to connect again.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// The messages of one process that wait for an earlier one.
#[derive(Debug, Default)]
pub(crate) struct ReorderBuffer {
    /// The number of the next message; `None` before the first.
    expected: Option<u64>,
    waiting: BTreeMap<u64, ChunkMessage>,
    /// Bytes of the waiting messages.
    bytes: usize,
    /// Since when messages have been waiting.
    since: Option<Instant>,
}

impl ReorderBuffer {
    /// Takes a message that arrived at `now`, and returns those that can be used, in order. The
    /// first message begins the order; repetitions are left out.
    pub(crate) fn push(&mut self, message: ChunkMessage, now: Instant) -> Vec<ChunkMessage> {
        let expected = *self.expected.get_or_insert(message.number);
        if message.number < expected {
            return Vec::new();
        }
        let bytes = message.payload.len();
        if self.waiting.insert(message.number, message).is_none() {
            self.bytes += bytes;
        }
        let mut usable = Vec::new();
        self.release(&mut usable);
        while self.waiting.len() > MAX_MESSAGES || self.bytes > MAX_BYTES {
            self.skip_missing(&mut usable);
        }
        self.since = if self.waiting.is_empty() { None } else { self.since.or(Some(now)) };
        usable
    }

    /// Returns the messages that have waited for too long at `now`. What is missing before them is
    /// lost.
    pub(crate) fn take_overdue(&mut self, now: Instant) -> Vec<ChunkMessage> {
        let mut usable = Vec::new();
        if self.since.is_some_and(|since| now.duration_since(since) >= MAX_WAIT) {
            while !self.waiting.is_empty() {
                self.skip_missing(&mut usable);
            }
            self.since = None;
        }
        usable
    }

    /// Moves the waiting messages that come next, if any, to `usable`.
    fn release(&mut self, usable: &mut Vec<ChunkMessage>) {
        while let Some(expected) = self.expected
            && let Some(message) = self.waiting.remove(&expected)
        {
            self.bytes -= message.payload.len();
            self.expected = Some(expected.saturating_add(1));
            usable.push(message);
        }
    }

    /// Continues with the first waiting message.
    fn skip_missing(&mut self, usable: &mut Vec<ChunkMessage>) {
        self.expected = self.waiting.keys().next().copied().or(self.expected);
        self.release(usable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes messages with these numbers at these seconds, and returns the numbers in order.
    fn ordered(arriving: &[(u64, u64)], checked_at: u64) -> Vec<u64> {
        let (mut buffer, start) = (ReorderBuffer::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let message = |number| ChunkMessage { number, ..ChunkMessage::default() };
        let pushed = arriving.iter().flat_map(|&(number, seconds)| buffer.push(message(number), at(seconds)));
        let mut numbers: Vec<u64> = pushed.map(|message| message.number).collect();
        numbers.extend(buffer.take_overdue(at(checked_at)).iter().map(|message| message.number));
        numbers
    }

    #[test]
    fn late_messages_get_their_place() {
        let check = |arriving: &[u64], expected: &[u64]| {
            let arriving: Vec<_> = arriving.iter().map(|&number| (number, 0)).collect();
            assert_eq!(ordered(&arriving, 9), expected, "{arriving:?}");
        };
        check(&[], &[]);
        check(&[5, 6, 7], &[5, 6, 7]);
        check(&[5, 7, 8, 6, 9], &[5, 6, 7, 8, 9]);
        check(&[5, 5, 7, 7, 4, 6, 6], &[5, 6, 7]);
        check(&[0, 3, 1, 4], &[0, 1]);
    }

    #[test]
    fn missing_messages_are_given_up_after_a_while() {
        assert_eq!(ordered(&[(0, 0), (2, 1), (5, 8)], 10), [0]);
        assert_eq!(ordered(&[(0, 0), (2, 1), (5, 8)], 11), [0, 2, 5]);
        // Another one is waited for anew.
        assert_eq!(ordered(&[(0, 0), (2, 1), (1, 2), (4, 3)], 12), [0, 1, 2]);
    }

    #[test]
    fn memory_is_limited() {
        let (mut buffer, now) = (ReorderBuffer::default(), Instant::now());
        let payload = bytes::Bytes::from(vec![0; 1 << 20]);
        let mut numbers = Vec::new();
        for number in (0..2000).step_by(2) {
            let payload = if number < 1000 { payload.clone() } else { bytes::Bytes::new() };
            let message = ChunkMessage { number, payload, ..ChunkMessage::default() };
            numbers.extend(buffer.push(message, now).into_iter().map(|message| message.number));
            assert!(buffer.bytes <= MAX_BYTES && buffer.waiting.len() <= MAX_MESSAGES);
        }
        assert!(numbers.is_sorted() && numbers.len() >= 1000 - MAX_MESSAGES, "{}", numbers.len());
    }
}
