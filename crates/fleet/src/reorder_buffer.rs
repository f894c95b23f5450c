//! Restores the order of one process's messages.
//!
//! A process sends several messages before the first is acknowledged, and sends a message again if
//! it is not acknowledged. While a broker's cluster elects a new leader, it may refuse a message
//! but store later ones; the repeated message then arrives after them, maybe much later. Each
//! message says which earlier messages the broker had acknowledged. If an acknowledged message is
//! missing, the broker has lost it. Any other missing message will be sent again, so the messages
//! after it wait.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};

use crate::message::ChunkMessage;

/// Maximum number of messages that wait for a missing earlier one; beyond it, the missing message
/// counts as lost. A process sends fewer before the first is acknowledged, except when it sends a
/// full state in many parts.
const MAX_MESSAGES: usize = 512;
/// Maximum size of the waiting messages, in bytes: enough for a full state and the messages around
/// it. Beyond it, the missing message counts as lost.
const MAX_BYTES: usize = 70 << 20;
/// Maximum time that messages wait for a missing one if no other message of the process arrives: a
/// killed process does not send it again. It is longer than a cluster needs to elect a leader and a
/// process needs to reconnect on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(120);
/// Maximum time that a reader's first messages wait for earlier ones that may be sent again. A
/// reader that begins in the middle does not know whether these are before its beginning.
const MAX_FIRST_WAIT: Duration = Duration::from_secs(30);

/// The messages of one process that wait for an earlier one.
#[derive(Debug, Default)]
pub(crate) struct ReorderBuffer {
    /// The number of the next message; `None` before the first.
    expected: Option<u64>,
    waiting: BTreeMap<u64, ChunkMessage>,
    /// The highest [`ChunkMessage::stored`] so far: all messages with lower numbers have been
    /// acknowledged.
    stored: u64,
    /// Bytes of the waiting messages.
    bytes: usize,
    /// When the newest message arrived; `None` if no message is waiting.
    newest: Option<Instant>,
    /// True once a message has been returned.
    has_begun: bool,
}

impl ReorderBuffer {
    /// Takes a message that arrived at `now`, and returns the messages that need not wait any
    /// longer, in order. The order begins with the first message, or an earlier one that may be
    /// sent again. Repeated messages are dropped.
    pub(crate) fn push(&mut self, message: ChunkMessage, now: Instant) -> Vec<ChunkMessage> {
        let expected = *self.expected.get_or_insert(message.number.min(message.stored));
        if message.number < expected {
            return Vec::new();
        }
        // A forged number must not skip the message itself.
        self.stored = self.stored.max(message.stored.min(message.number));
        // A message whose number is already waiting is a repetition, whatever its content.
        if let Entry::Vacant(place) = self.waiting.entry(message.number) {
            self.bytes += message.payload.len();
            place.insert(message);
        }
        let mut usable = Vec::new();
        self.release(&mut usable);
        while !self.waiting.is_empty() && self.expected.is_some_and(|expected| expected < self.stored) {
            self.skip_lost(&mut usable);
        }
        while !self.waiting.is_empty() && (self.waiting.len() > MAX_MESSAGES || self.bytes > MAX_BYTES) {
            self.skip_missing(&mut usable);
        }
        self.newest = (!self.waiting.is_empty()).then_some(now);
        usable
    }

    /// Returns true if no message is waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the waiting messages if none has arrived for too long at `now`; the missing messages
    /// before them count as lost. Only the time since `receiving_since` counts, when the reader
    /// began to receive messages, because processes cannot send while the broker is unreachable.
    pub(crate) fn take_overdue(&mut self, now: Instant, receiving_since: Option<Instant>) -> Vec<ChunkMessage> {
        // If no message has been acknowledged yet, all missing messages will be sent again.
        let longest = if self.has_begun || self.stored == 0 { MAX_WAIT } else { MAX_FIRST_WAIT };
        let (Some(newest), Some(receiving)) = (self.newest, receiving_since) else { return Vec::new() };
        if now.duration_since(newest.max(receiving)) >= longest { self.take_all() } else { Vec::new() }
    }

    /// Returns the approximate memory that the waiting messages take, in bytes.
    #[cfg(feature = "archive")]
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.bytes + self.waiting.len() * size_of::<(u64, ChunkMessage)>()
    }

    /// Returns all waiting messages, and continues after them. Missing messages between them count
    /// as lost.
    pub(crate) fn take_all(&mut self) -> Vec<ChunkMessage> {
        let mut usable = Vec::new();
        while !self.waiting.is_empty() {
            self.skip_missing(&mut usable);
        }
        self.newest = None;
        usable
    }

    /// Moves the waiting messages that follow without a gap to `usable`.
    fn release(&mut self, usable: &mut Vec<ChunkMessage>) {
        while let Some(expected) = self.expected
            && let Some(message) = self.waiting.remove(&expected)
        {
            self.bytes -= message.payload.len();
            self.has_begun = true;
            self.expected = Some(expected.saturating_add(1));
            usable.push(message);
        }
    }

    /// Skips lost messages: continues with the first waiting message, or with an earlier one that
    /// may be sent again.
    fn skip_lost(&mut self, usable: &mut Vec<ChunkMessage>) {
        let first = self.waiting.keys().next().copied();
        self.expected = first.map(|first| first.min(self.stored)).or(self.expected);
        self.release(usable);
    }

    /// Skips all missing messages before the first waiting one, even if they may be sent again.
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
        // The first message says that all messages before it are acknowledged.
        let stored = arriving.first().map_or(0, |(number, _)| *number);
        let message = |number| ChunkMessage { number, stored, ..ChunkMessage::default() };
        let pushed = arriving.iter().flat_map(|&(number, seconds)| buffer.push(message(number), at(seconds)));
        let mut numbers: Vec<u64> = pushed.map(|message| message.number).collect();
        let overdue = buffer.take_overdue(at(checked_at), Some(start));
        numbers.extend(overdue.iter().map(|message| message.number));
        numbers
    }

    #[test]
    fn late_messages_are_put_in_order() {
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
        assert_eq!(ordered(&[(0, 0), (2, 1), (5, 8)], 127), [0]);
        assert_eq!(ordered(&[(0, 0), (2, 1), (5, 8)], 128), [0, 2, 5]);
        assert_eq!(ordered(&[(0, 0), (2, 1), (1, 2), (4, 3)], 122), [0, 1, 2]);
    }

    #[test]
    fn missing_messages_are_waited_for_while_the_broker_cannot_be_reached() {
        let (mut buffer, start) = (ReorderBuffer::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let message = |number| ChunkMessage { number, ..ChunkMessage::default() };
        assert_eq!(buffer.push(message(0), start).len(), 1);
        assert!(buffer.push(message(2), start).is_empty());
        assert!(buffer.take_overdue(at(500), None).is_empty());
        assert!(buffer.take_overdue(at(500), Some(at(400))).is_empty());
        assert_eq!(buffer.take_overdue(at(520), Some(at(400))).len(), 1);
    }

    #[test]
    fn acknowledged_messages_are_not_waited_for() {
        let check = |arriving: &[(u64, u64)], expected: &[u64]| {
            let (mut buffer, now) = (ReorderBuffer::default(), Instant::now());
            let message = |&(number, stored)| ChunkMessage { number, stored, ..ChunkMessage::default() };
            let usable = arriving.iter().flat_map(|numbers| buffer.push(message(numbers), now));
            assert_eq!(usable.map(|message| message.number).collect::<Vec<_>>(), expected, "{arriving:?}");
        };
        // 0 or 1 will be sent again.
        check(&[(1, 0), (2, 0), (0, 0), (3, 2)], &[0, 1, 2, 3]);
        check(&[(0, 0), (2, 1), (3, 1)], &[0]);
        check(&[(0, 0), (2, 1), (3, 1), (1, 1)], &[0, 1, 2, 3]);
        // The broker has lost 1 to 3, but 4 and 5 will be sent again.
        check(&[(0, 0), (6, 4), (7, 4)], &[0]);
        check(&[(0, 0), (6, 4), (4, 4), (5, 4)], &[0, 4, 5, 6]);
        check(&[(0, 0), (2, 1), (6, 4), (4, 4), (5, 4)], &[0, 2, 4, 5, 6]);
        check(&[(0, 0), (9, 9), (10, 9)], &[0, 9, 10]);
        // A reader that begins in the middle.
        check(&[(7, 5), (8, 6)], &[]);
        check(&[(7, 5), (8, 6), (9, 7)], &[7, 8, 9]);
        // Impossible numbers skip nothing that has arrived.
        check(&[(0, u64::MAX), (1, u64::MAX), (3, u64::MAX)], &[0, 1, 3]);
    }

    #[test]
    fn first_messages_wait_less_unless_none_is_acknowledged() {
        let check = |stored: u64, seconds: u64| {
            let (mut buffer, start) = (ReorderBuffer::default(), Instant::now());
            assert!(buffer.push(ChunkMessage { number: 3, stored, ..ChunkMessage::default() }, start).is_empty());
            let mut overdue = |seconds| buffer.take_overdue(start + Duration::from_secs(seconds), Some(start)).len();
            assert_eq!([overdue(seconds - 1), overdue(seconds)], [0, 1], "{stored} stored");
        };
        check(2, 30);
        check(0, 120);
    }

    #[test]
    fn repetitions_of_another_size_change_nothing() {
        let (mut buffer, now) = (ReorderBuffer::default(), Instant::now());
        let message = |number, bytes: usize| {
            let payload = bytes::Bytes::from(vec![0; bytes]);
            ChunkMessage { number, payload, ..ChunkMessage::default() }
        };
        for size in [0, 100, 7] {
            assert!(buffer.push(message(1, size), now).is_empty());
        }
        let sizes: Vec<usize> = buffer.push(message(0, 3), now).iter().map(|message| message.payload.len()).collect();
        assert_eq!((sizes, buffer.bytes), (vec![3, 0], 0));
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
