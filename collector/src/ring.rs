//! A single-producer single-consumer queue of atomic words. Neither end takes a lock, and no word
//! is ever uninitialized.
//!
//! Most of a queue's cost is fetching cache lines for writing: the consumer has read a line last,
//! so the line is in another core's cache, and fetching it takes 60 to 100 ns on a server. The
//! producer therefore prefetches lines some records ahead.

#[cfg(not(vramscope_loom))]
use std::sync::Arc;
#[cfg(not(vramscope_loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(vramscope_loom)]
use loom::sync::Arc;
#[cfg(vramscope_loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Length of a cache line in words (64 bits). No record is longer, so a record touches at most two
/// lines.
const LINE_LEN: u64 = 8;
/// How far ahead of the written words the writing end prefetches cache lines, in words: about ten
/// records.
const AHEAD: u64 = 4 * LINE_LEN;
/// Length of a memory page in words (64 bits): 4 KiB.
const PAGE_LEN: usize = 512;

/// A counter alone in two adjacent cache lines, which processors fetch together, so that writes to
/// other data do not slow it down.
#[repr(align(128))]
#[derive(Default)]
struct CacheLineCounter(AtomicU64);

/// The memory and counters that the two ends of a ring share.
struct RingBuffer<const LEN: usize> {
    words: Box<[AtomicU64; LEN]>,
    /// Number of words ever written.
    put: CacheLineCounter,
    /// Number of words ever read and released.
    taken: CacheLineCounter,
    /// True after the producer has been dropped.
    is_ended: AtomicBool,
}

impl<const LEN: usize> RingBuffer<LEN> {
    /// Returns the word with number `index`, counted since the ring's creation; the ring reuses its
    /// words in turn.
    #[inline]
    fn word(&self, index: u64) -> &AtomicU64 {
        const { assert!(LEN.is_power_of_two()) };
        &self.words[index as usize & (LEN - 1)]
    }
}

/// Creates an empty ring of `LEN` words, which must be a power of two, and returns its two ends.
pub fn ring<const LEN: usize>() -> (Producer<LEN>, Consumer<LEN>) {
    let words: Box<[AtomicU64]> = (0..LEN).map(|_| AtomicU64::new(0)).collect();
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
pub struct Producer<const LEN: usize> {
    ring: Arc<RingBuffer<LEN>>,
    /// Number of words ever written.
    at: u64,
    /// Number of words that may be written before [`refresh`](Self::refresh) is needed.
    until: u64,
}

impl<const LEN: usize> Producer<LEN> {
    /// Returns the number of words written since the ring's creation.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns true if `len` words can be written at once. If false, [`refresh`](Self::refresh)
    /// must be called first; there may still be room.
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        self.at + len as u64 <= self.until
    }

    /// Reads how much room the consumer has released; returns true if `len` words fit. Once `due`
    /// words have been written since the ring's creation, [`has_room`](Self::has_room) returns
    /// false even if there is room, so that the caller can wake the consumer.
    pub fn refresh(&mut self, len: usize, due: u64) -> bool {
        let end = self.ring.taken.0.load(Ordering::Acquire) + LEN as u64;
        self.until = end.min(due);
        self.at + len as u64 <= end
    }

    /// Writes a record that [fits](Self::has_room). The consumer sees all of it or nothing.
    #[inline]
    pub fn put<const N: usize>(&mut self, record: [u64; N]) {
        const { assert!(N as u64 <= LINE_LEN) };
        for (index, word) in (self.at..).zip(record) {
            self.ring.word(index).store(word, Ordering::Relaxed);
        }
        self.at += N as u64;
        self.ring.put.0.store(self.at, Ordering::Release);
        prefetch_for_writing(self.ring.word(self.at + AHEAD));
    }
}

impl<const LEN: usize> Producer<LEN> {
    /// Writes a record of any length that [fits](Self::has_room). The consumer sees all of it or
    /// nothing.
    pub fn put_slice(&mut self, record: &[u64]) {
        for (index, &word) in (self.at..).zip(record) {
            self.ring.word(index).store(word, Ordering::Relaxed);
        }
        self.at += record.len() as u64;
        self.ring.put.0.store(self.at, Ordering::Release);
    }
}

impl<const LEN: usize> Drop for Producer<LEN> {
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
pub struct Consumer<const LEN: usize> {
    ring: Arc<RingBuffer<LEN>>,
    /// Number of words ever read.
    at: u64,
    /// Number of words that may be read, as of the last refresh.
    until: u64,
}

impl<const LEN: usize> Consumer<LEN> {
    /// Reads how far the producer is, so that [`take`](Self::take) returns the words written until
    /// now; always whole records.
    pub fn refresh(&mut self) {
        self.until = self.ring.put.0.load(Ordering::Acquire);
    }

    /// Returns the number of words read since the ring's creation.
    #[inline]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns the number of words written since the ring's creation, as of the last
    /// [`refresh`](Self::refresh).
    #[inline]
    pub fn until(&self) -> u64 {
        self.until
    }

    /// Reads the next word; `None` if all words of the last [`refresh`](Self::refresh) are read.
    /// The producer reuses its room only after [`release`](Self::release).
    #[inline]
    pub fn take(&mut self) -> Option<u64> {
        if self.at == self.until {
            return None;
        }
        let word = self.ring.word(self.at).load(Ordering::Relaxed);
        self.at += 1;
        Some(word)
    }

    /// Lets the producer reuse the room of all words read so far.
    pub fn release(&self) {
        self.ring.taken.0.store(self.at, Ordering::Release);
    }

    /// Returns true if the producer has been dropped and every word has been read.
    pub fn is_done(&self) -> bool {
        // In this order: words written before the producer was dropped are then visible.
        self.ring.is_ended.load(Ordering::Acquire) && self.ring.put.0.load(Ordering::Acquire) == self.at
    }
}

/// A loom test of every order in which two threads can access a ring; run it with
/// `cargo test -p vramscope-ring-model`.
#[cfg(all(test, vramscope_loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn records_are_seen_whole_and_in_order_in_every_interleaving() {
        loom::model(|| {
            let (mut producer, mut consumer) = ring::<4>();
            let writer = loom::thread::spawn(move || {
                let mut written = 0;
                for record in [[1, 2], [3, 4], [5, 6]] {
                    if producer.has_room(2) || producer.refresh(2, u64::MAX) {
                        producer.put(record);
                        written += 1;
                    }
                }
                written
            });
            let mut words = Vec::new();
            for _ in 0..2 {
                consumer.refresh();
                while let Some(word) = consumer.take() {
                    words.push(word);
                }
                assert!(words.len().is_multiple_of(2), "a record is torn");
                consumer.release();
            }
            let written: usize = writer.join().expect("the writer does not panic");
            consumer.refresh();
            words.extend(std::iter::from_fn(|| consumer.take()));
            // Records that found no room are left out; those written arrive, in order.
            assert_eq!(words.len(), 2 * written);
            assert!(words.chunks(2).all(|record| record[1] == record[0] + 1), "{words:?}");
            assert!(words.is_sorted(), "{words:?}");
        });
    }
}

#[cfg(all(test, not(vramscope_loom)))]
mod tests {
    use super::*;

    const RING_LEN: usize = 1 << 17;

    #[test]
    fn words_are_read_as_written_and_never_overwritten() {
        let (mut producer, mut consumer) = ring::<RING_LEN>();
        let count = 3 * RING_LEN as u64;
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
                assert!(consumer.until() - consumer.at() <= RING_LEN as u64);
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
        let (mut producer, mut consumer) = ring::<RING_LEN>();
        assert!(producer.refresh(3, 4));
        assert!(producer.has_room(3));
        producer.put([1, 2, 3]);
        assert!(!producer.has_room(3));
        assert!(producer.refresh(3, u64::MAX) && producer.has_room(3));
        assert!(producer.refresh(RING_LEN - 3, u64::MAX));
        assert!(!producer.refresh(RING_LEN - 2, u64::MAX) && !producer.has_room(RING_LEN - 2));
        consumer.refresh();
        assert_eq!(consumer.take(), Some(1));
        assert!(!producer.refresh(RING_LEN - 2, u64::MAX), "the words have not been released");
        consumer.release();
        assert!(producer.refresh(RING_LEN - 2, u64::MAX));
    }
}
