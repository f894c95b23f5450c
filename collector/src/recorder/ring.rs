//! A queue of words from one thread to another, in a ring of atomic words: the ends need no lock, and no word is ever uninitialized.
//!
//! What a program pays for a queue is for the most part the lines of the processor's cache that it writes. A line of the ring was last read by
//! the recorder, and so lies in the cache of another core; to have it takes 60 to 100 ns on a server. The end that is put into asks for the
//! lines that it will need some records ahead, and does not wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Words of a ring, 1 MiB: the 21,845 blocks that a program can allocate and free before it has to wait for the recorder. A larger ring
/// wakes the recorder less often, but the lines that it goes through leave the processor's own cache.
pub(super) const RING_LEN: u64 = 1 << 17;
/// Longer than the words that are ever put at once: a record that begins on a line touches no line but that and the next.
const LINE_LEN: u64 = 8;
/// How far ahead lines are asked for: some ten records.
const AHEAD: u64 = 4 * LINE_LEN;
/// Words of a page of memory.
const PAGE_LEN: usize = 512;

const MASK: u64 = RING_LEN - 1;

/// A number in a line of the cache for itself, and the one beside it, which processors fetch together.
#[repr(align(128))]
#[derive(Default)]
struct Apart(AtomicU64);

struct Ring {
    words: Box<[AtomicU64; RING_LEN as usize]>,
    /// How many words were ever put.
    put: Apart,
    /// How many of them were taken.
    taken: Apart,
    /// Nothing more will be put.
    ended: AtomicBool,
}

impl Ring {
    #[inline]
    fn word(&self, place: u64) -> &AtomicU64 {
        &self.words[(place & MASK) as usize]
    }
}

/// The two ends of a new ring.
pub(super) fn ring() -> (Inlet, Outlet) {
    let words: Box<[AtomicU64]> = (0..RING_LEN).map(|_| AtomicU64::new(0)).collect();
    // Here and not with the first events, each page of which would cost as much as a hundred of them.
    words.iter().step_by(PAGE_LEN).for_each(|word| word.store(0, Ordering::Relaxed));
    let words = words.try_into().unwrap_or_else(|_| unreachable!("it was made with that length"));
    let ring = Ring { words, put: Apart::default(), taken: Apart::default(), ended: AtomicBool::new(false) };
    let ring = Arc::new(ring);
    (Inlet { ring: Arc::clone(&ring), at: 0, until: 0 }, Outlet { ring, at: 0, until: 0 })
}

/// The end into which words are put.
pub(super) struct Inlet {
    ring: Arc<Ring>,
    /// How many words were ever put.
    at: u64,
    /// How many may have been put before there is something to be done: words were taken by then, or something else was due.
    until: u64,
}

impl Inlet {
    /// How many words were ever put.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Whether so many words can be put with nothing to be done before.
    #[inline]
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.at + len as u64 <= self.until
    }

    /// Looks how much was taken, and says that something is to be done at `due` in any case; says whether there is room for so many words.
    pub(super) fn look(&mut self, len: usize, due: u64) -> bool {
        let end = self.ring.taken.0.load(Ordering::Acquire) + RING_LEN;
        self.until = end.min(due);
        self.at + len as u64 <= end
    }

    /// Puts a whole record, for which [there is room](Self::has_room). The other end sees all of it or nothing.
    #[inline]
    pub(super) fn put<const N: usize>(&mut self, record: [u64; N]) {
        const { assert!(N as u64 <= LINE_LEN) };
        for (place, word) in (self.at..).zip(record) {
            self.ring.word(place).store(word, Ordering::Relaxed);
        }
        self.at += N as u64;
        self.ring.put.0.store(self.at, Ordering::Release);
        prefetch_for_writing(self.ring.word(self.at + AHEAD));
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.ring.ended.store(true, Ordering::Release);
    }
}

/// Asks for a word's line as one that will be written, so that no other core has it then.
#[inline]
fn prefetch_for_writing(word: &AtomicU64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: The instruction is a hint. It changes no register and no memory, and processors that do not know it pass over it.
    unsafe {
        core::arch::asm!("prefetchw [{}]", in(reg) word, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = word;
}

/// The end out of which words are taken.
pub(super) struct Outlet {
    ring: Arc<Ring>,
    /// How many words were ever taken.
    at: u64,
    /// How many words may be taken: how many had been put when that was last looked at.
    until: u64,
}

impl Outlet {
    /// Looks what has been put, which is whole records.
    pub(super) fn look(&mut self) {
        self.until = self.ring.put.0.load(Ordering::Acquire);
    }

    /// How many words were ever taken.
    #[inline]
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// How many words had ever been put at the last look.
    #[inline]
    pub(super) fn until(&self) -> u64 {
        self.until
    }

    /// The next word, if there was one at the last look. Its place is not free before [`give_back`](Self::give_back).
    #[inline]
    pub(super) fn take(&mut self) -> Option<u64> {
        if self.at == self.until {
            return None;
        }
        let word = self.ring.word(self.at).load(Ordering::Relaxed);
        self.at += 1;
        Some(word)
    }

    /// Lets the other end have the places of all words that were taken.
    pub(super) fn give_back(&self) {
        self.ring.taken.0.store(self.at, Ordering::Release);
    }

    /// Whether everything was taken and nothing more will be put.
    pub(super) fn is_done(&self) -> bool {
        // In this order: what was put before the other end was dropped is there to be seen once that is seen.
        self.ring.ended.load(Ordering::Acquire) && self.ring.put.0.load(Ordering::Acquire) == self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_come_out_as_they_went_in_and_none_is_overwritten() {
        let (mut inlet, mut outlet) = ring();
        let count = 3 * RING_LEN;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for word in (0..count).step_by(2) {
                    while !inlet.has_room(2) {
                        inlet.look(2, u64::MAX);
                        std::thread::yield_now();
                    }
                    inlet.put([word, word + 1]);
                }
            });
            let mut next = 0;
            while !outlet.is_done() {
                outlet.look();
                assert!(outlet.until() - outlet.at() <= RING_LEN);
                while let Some(word) = outlet.take() {
                    assert_eq!(word, next);
                    next += 1;
                }
                outlet.give_back();
                std::thread::yield_now();
            }
            assert_eq!(next, count);
        });
    }

    #[test]
    fn what_is_due_comes_before_the_end_of_the_room() {
        let (mut inlet, mut outlet) = ring();
        assert!(inlet.look(3, 4));
        assert!(inlet.has_room(3));
        inlet.put([1, 2, 3]);
        assert!(!inlet.has_room(3));
        assert!(inlet.look(3, u64::MAX) && inlet.has_room(3));
        assert!(inlet.look(RING_LEN as usize - 3, u64::MAX));
        assert!(!inlet.look(RING_LEN as usize - 2, u64::MAX) && !inlet.has_room(RING_LEN as usize - 2));
        outlet.look();
        assert_eq!(outlet.take(), Some(1));
        assert!(!inlet.look(RING_LEN as usize - 2, u64::MAX), "it was not given back");
        outlet.give_back();
        assert!(inlet.look(RING_LEN as usize - 2, u64::MAX));
    }
}
