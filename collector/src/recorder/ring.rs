//! A single-producer single-consumer queue of atomic words. Neither end takes a lock, and no word
//! is ever uninitialized.
//!
//! The cost of a queue is mainly the cache lines written. The consumer read a line last, so it is
//! in another core's cache, and fetching it takes 60 to 100 ns on a server. The producer therefore
//! prefetches lines some records ahead.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Length of a ring in words (64 bits): 1 MiB, room for the events of 21,845 blocks. A larger ring
/// wakes the recorder less often, but its lines leave the processor's own cache.
pub(super) const RING_LEN: u64 = 1 << 17;
/// Length of a cache line in words (64 bits). No record is longer, so a record touches at most two
/// lines.
const LINE_LEN: u64 = 8;
/// How far ahead of the written words the writing end prefetches cache lines, in words: about ten
/// records.
const AHEAD: u64 = 4 * LINE_LEN;
/// Length of a memory page in words (64 bits): 4 KiB.
const PAGE_LEN: usize = 512;

/// Mask that converts a word's number, counted since the ring's creation, to its index in the ring.
const MASK: u64 = RING_LEN - 1;

/// A counter that has its cache line and the adjacent one, which processors fetch together, to
/// itself.
#[repr(align(128))]
#[derive(Default)]
struct CacheLineCounter(AtomicU64);

/// The memory and counters that the two ends of a ring share.
struct RingBuffer {
    words: Box<[AtomicU64; RING_LEN as usize]>,
    /// Number of words ever written.
    put: CacheLineCounter,
    /// Number of words ever read and released.
    taken: CacheLineCounter,
    /// True after the producer has been dropped.
    is_ended: AtomicBool,
}

impl RingBuffer {
    /// Returns the word with number `index`, counted since the ring's creation; the ring reuses its
    /// words in turn.
    #[inline]
    fn word(&self, index: u64) -> &AtomicU64 {
        &self.words[(index & MASK) as usize]
    }
}

/// Creates an empty ring of [`RING_LEN`] words and returns its two ends.
pub(super) fn ring() -> (Producer, Consumer) {
    let words: Box<[AtomicU64]> = (0..RING_LEN).map(|_| AtomicU64::new(0)).collect();
    // Touch the pages now: a page fault costs as much as a hundred events.
    words.iter().step_by(PAGE_LEN).for_each(|word| word.store(0, Ordering::Relaxed));
    let words = words.try_into().unwrap_or_else(|_| unreachable!("the vector has this length"));
    let ring = RingBuffer {
        words,
        put: CacheLineCounter::default(),
        taken: CacheLineCounter::default(),
        is_ended: AtomicBool::new(false),
    };
    let ring = Arc::new(ring);
    (Producer { ring: Arc::clone(&ring), at: 0, until: 0 }, Consumer { ring, at: 0, until: 0 })
}

/// The writing end of a ring.
pub(super) struct Producer {
    ring: Arc<RingBuffer>,
    /// Number of words ever written.
    at: u64,
    /// Number of words that may be written before [`refresh`](Self::refresh) is needed.
    until: u64,
}

impl Producer {
    /// Returns the number of words written since the ring's creation.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Returns true if `len` words can be written at once. If false, [`refresh`](Self::refresh)
    /// must be called first; there may still be room.
    #[inline]
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.at + len as u64 <= self.until
    }

    /// Reads how much room the consumer has released; returns true if `len` words fit. Once `due`
    /// words have been written since the ring's creation, [`has_room`](Self::has_room) returns
    /// false even if there is room, so that the caller can wake the recorder.
    pub(super) fn refresh(&mut self, len: usize, due: u64) -> bool {
        let end = self.ring.taken.0.load(Ordering::Acquire) + RING_LEN;
        self.until = end.min(due);
        self.at + len as u64 <= end
    }

    /// Writes a record that [fits](Self::has_room). The consumer sees all of it or nothing.
    #[inline]
    pub(super) fn put<const N: usize>(&mut self, record: [u64; N]) {
        const { assert!(N as u64 <= LINE_LEN) };
        for (index, word) in (self.at..).zip(record) {
            self.ring.word(index).store(word, Ordering::Relaxed);
        }
        self.at += N as u64;
        self.ring.put.0.store(self.at, Ordering::Release);
        prefetch_for_writing(self.ring.word(self.at + AHEAD));
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.ring.is_ended.store(true, Ordering::Release);
    }
}

/// Fetches a word's cache line into this processor's cache, for writing. Only a hint.
#[inline]
fn prefetch_for_writing(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: The instruction is a hint: it changes no register or memory, and processors without
    // it ignore it.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// The reading end of a ring.
pub(super) struct Consumer {
    ring: Arc<RingBuffer>,
    /// Number of words ever read.
    at: u64,
    /// Number of words that may be read, as of the last refresh.
    until: u64,
}

impl Consumer {
    /// Reads how far the producer is, so that [`take`](Self::take) returns the words written until
    /// now; always whole records.
    pub(super) fn refresh(&mut self) {
        self.until = self.ring.put.0.load(Ordering::Acquire);
    }

    /// Returns the number of words read since the ring's creation.
    #[inline]
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the number of words written since the ring's creation, as of the last
    /// [`refresh`](Self::refresh).
    #[inline]
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// Reads the next word; `None` if all words of the last [`refresh`](Self::refresh) are read.
    /// The producer reuses its room only after [`release`](Self::release).
    #[inline]
    pub(super) fn take(&mut self) -> Option<u64> {
        if self.at == self.until {
            return None;
        }
        let word = self.ring.word(self.at).load(Ordering::Relaxed);
        self.at += 1;
        Some(word)
    }

    /// Lets the producer reuse the room of all words read so far.
    pub(super) fn release(&self) {
        self.ring.taken.0.store(self.at, Ordering::Release);
    }

    /// Returns true if the producer has been dropped and every word has been read.
    pub(super) fn is_done(&self) -> bool {
        // In this order: words written before the producer was dropped are then visible.
        self.ring.is_ended.load(Ordering::Acquire) && self.ring.put.0.load(Ordering::Acquire) == self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_written_and_never_overwritten() {
        let (mut producer, mut consumer) = ring();
        let count = 3 * RING_LEN;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for word in (0..count).step_by(2) {
                    while !producer.has_room(2) {
                        producer.refresh(2, u64::MAX);
                        std::thread::yield_now();
                    }
                    producer.put([word, word + 1]);
                }
            });
            let mut next = 0;
            while !consumer.is_done() {
                consumer.refresh();
                assert!(consumer.until() - consumer.at() <= RING_LEN);
                while let Some(word) = consumer.take() {
                    assert_eq!(word, next);
                    next += 1;
                }
                consumer.release();
                std::thread::yield_now();
            }
            assert_eq!(next, count);
        });
    }

    #[test]
    fn due_position_limits_the_room() {
        let (mut producer, mut consumer) = ring();
        assert!(producer.refresh(3, 4));
        assert!(producer.has_room(3));
        producer.put([1, 2, 3]);
        assert!(!producer.has_room(3));
        assert!(producer.refresh(3, u64::MAX) && producer.has_room(3));
        assert!(producer.refresh(RING_LEN as usize - 3, u64::MAX));
        assert!(!producer.refresh(RING_LEN as usize - 2, u64::MAX) && !producer.has_room(RING_LEN as usize - 2));
        consumer.refresh();
        assert_eq!(consumer.take(), Some(1));
        assert!(!producer.refresh(RING_LEN as usize - 2, u64::MAX), "the words have not been released");
        consumer.release();
        assert!(producer.refresh(RING_LEN as usize - 2, u64::MAX));
    }
}
