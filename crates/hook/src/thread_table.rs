//! A table with two words for each thread, which a thread reads without a lock.
//!
//! The tracker cannot use thread-local variables: for a library that was loaded late, the C library
//! allocates them at a thread's first use. Instead, a thread is identified by its *thread pointer*,
//! the address of the C library's own data of the thread, which is in a register.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::hash::HASH_MULTIPLIER;

/// Returns this thread's pointer; 0 on processors that are not supported.
#[inline]
pub(crate) fn thread_pointer() -> usize {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    {
        let pointer: usize;
        // SAFETY: On x86-64 Linux, fs points to the thread's data, whose first word is its own
        // address. The instruction only reads.
        unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, preserves_flags, readonly)) }
        pointer
    }
    #[cfg(all(target_os = "linux", target_arch = "aarch64"))]
    {
        let pointer: usize;
        // SAFETY: The instruction reads a register that the C library sets and programs may read.
        unsafe { std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, preserves_flags, nomem)) }
        pointer
    }
    #[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
    0
}

/// Number of threads in a bucket. Their thread pointers fill a cache line.
const BUCKET_THREADS: usize = 8;

/// A hash bucket: up to [`BUCKET_THREADS`] threads and their words.
#[repr(align(64))]
struct Bucket {
    /// Thread pointers; 0 for none.
    threads: [AtomicUsize; BUCKET_THREADS],
    words: [[AtomicUsize; 2]; BUCKET_THREADS],
}

/// A table of two words for each thread, by thread pointer. Only one thread at a time may change
/// the words of a given thread. A reader may see one old and one new word.
pub(crate) struct ThreadTable<const BUCKETS: usize> {
    buckets: [Bucket; BUCKETS],
}

impl<const BUCKETS: usize> ThreadTable<BUCKETS> {
    pub(crate) const fn new() -> Self {
        let buckets = [const {
            Bucket {
                threads: [const { AtomicUsize::new(0) }; BUCKET_THREADS],
                words: [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; BUCKET_THREADS],
            }
        }; BUCKETS];
        Self { buckets }
    }

    /// Returns the bucket of a thread.
    #[inline]
    fn bucket(&self, thread: usize) -> &Bucket {
        let hash = (thread as u64 >> 6).wrapping_mul(HASH_MULTIPLIER) >> 32;
        &self.buckets[hash as usize % BUCKETS]
    }

    /// Returns the words of a thread; `None` if it has none.
    #[inline]
    pub(crate) fn get(&self, thread: usize) -> Option<[usize; 2]> {
        let bucket = self.bucket(thread);
        let index = bucket.threads.iter().position(|known| known.load(Ordering::Acquire) == thread)?;
        let [first, second] = &bucket.words[index];
        Some([first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)])
    }

    /// Sets the words of a thread. Returns false if there is no room for another thread.
    pub(crate) fn set(&self, thread: usize, words: [usize; 2]) -> bool {
        if thread == 0 {
            return false;
        }
        let bucket = self.bucket(thread);
        let known = bucket.threads.iter().position(|known| known.load(Ordering::Relaxed) == thread);
        let claim =
            |slot: &AtomicUsize| slot.compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let Some(index) = known.or_else(|| bucket.threads.iter().position(claim)) else { return false };
        for (slot, word) in bucket.words[index].iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        bucket.threads[index].store(thread, Ordering::Release);
        true
    }

    /// Removes all threads. No other thread may use the table meanwhile.
    pub(crate) fn clear(&self) {
        for known in self.buckets.iter().flat_map(|bucket| &bucket.threads) {
            // Stores only where necessary: a store makes the system copy a memory page that a
            // forked child shares with its parent.
            if known.load(Ordering::Relaxed) != 0 {
                known.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Removes a thread.
    pub(crate) fn remove(&self, thread: usize) {
        let bucket = self.bucket(thread);
        if let Some(known) = bucket.threads.iter().find(|known| known.load(Ordering::Relaxed) == thread) {
            known.store(0, Ordering::Release);
        }
    }
}

/// Marks a slot that a thread is about to use. No thread has this pointer, because it is not
/// aligned.
const CLAIMED: usize = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_words() {
        static TABLE: ThreadTable<64> = ThreadTable::new();
        let threads: Vec<_> = (0..64)
            .map(|number| {
                std::thread::spawn(move || {
                    let thread = thread_pointer();
                    assert_ne!(thread, 0);
                    assert_eq!(TABLE.get(thread), None);
                    for round in 0..1000 {
                        assert!(TABLE.set(thread, [number, round]));
                        assert_eq!(TABLE.get(thread), Some([number, round]));
                    }
                    TABLE.remove(thread);
                    assert_eq!(TABLE.get(thread), None);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
    }

    #[test]
    fn full_bucket_refuses_another_thread() {
        let table = ThreadTable::<1>::new();
        assert!((1..=BUCKET_THREADS).all(|number| table.set(number * 64, [number, 0])));
        assert!(!table.set(1 << 20, [1, 1]));
        assert_eq!(table.get(1 << 20), None);
        table.remove(64);
        assert!(table.set(1 << 20, [1, 1]));
        assert!(!table.set(0, [1, 1]));
        assert_eq!(table.get(128), Some([2, 0]));
        table.clear();
        assert_eq!((table.get(128), table.get(1 << 20)), (None, None));
    }
}
