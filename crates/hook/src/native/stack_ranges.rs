//! The bounds of each thread's stack, found by the follower and read by the tracker.
//!
//! A thread's stack ends at the thread pointer, because the C library keeps a thread's own data at
//! the top of its stack. Only the first thread's stack ends elsewhere, at the end of its mapping.
//! The bounds of an ended thread need not be removed: a later thread with the same pointer has a
//! stack that ends there, too.

use std::fs;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use vramscope_collector::session::lifecycle::ProcessMutex;

use crate::thread_table::ThreadTable;

/// Minimum interval between two reads of the process's mappings by the follower.
const INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of threads whose requests wait for the follower; further requests are dropped.
const REQUESTS: usize = 16;

/// Lowest and highest address of each thread's stack.
static RANGES: ThreadTable<512> = ThreadTable::new();

/// A request of a thread for the bounds of its stack.
struct StackRequest {
    /// The thread pointer; 0 for none, 1 while the request is being written.
    thread: AtomicUsize,
    stack_pointer: AtomicUsize,
}

/// The requests that wait for the follower.
static WAITING: [StackRequest; REQUESTS] =
    [const { StackRequest { thread: AtomicUsize::new(0), stack_pointer: AtomicUsize::new(0) } }; REQUESTS];

/// When the follower last read the process's mappings.
pub(super) static LAST_READ: ProcessMutex<Option<Instant>> = ProcessMutex::new();

/// Returns the part of a thread's stack above its stack pointer. If it is unknown, requests it from
/// the follower and returns `None`.
#[inline]
pub(super) fn stack_of(thread: usize, stack_pointer: usize) -> Option<Range<usize>> {
    let known = RANGES.get(thread).filter(|[low, high]| (*low..*high).contains(&stack_pointer));
    if known.is_none() {
        request(thread, stack_pointer);
    }
    known.map(|[_, high]| stack_pointer..high)
}

/// Requests the bounds of a thread's stack. Does nothing if [`REQUESTS`] threads already wait; the
/// thread's next call tries again.
#[cold]
pub(super) fn request(thread: usize, stack_pointer: usize) {
    let slot = &WAITING[(thread >> 12) % REQUESTS];
    if thread > 1 && slot.thread.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        slot.stack_pointer.store(stack_pointer, Ordering::Relaxed);
        slot.thread.store(thread, Ordering::Release);
    }
}

/// Finds the bounds of all requested stacks. The tracker must not call this, because it reads a
/// file.
pub(crate) fn find_requested() {
    let is_waiting = |slot: &&StackRequest| slot.thread.load(Ordering::Acquire) > 1;
    if !WAITING.iter().any(|slot| is_waiting(&slot)) {
        return;
    }
    let mut last_read = LAST_READ.lock();
    if last_read.is_some_and(|at| at.elapsed() < INTERVAL) {
        return;
    }
    *last_read = Some(Instant::now());
    let Ok(mappings) = fs::read_to_string("/proc/self/maps") else { return };
    let mappings = writable_mappings(&mappings);
    for slot in WAITING.iter().filter(is_waiting) {
        let thread = slot.thread.load(Ordering::Acquire);
        let stack_pointer = slot.stack_pointer.load(Ordering::Relaxed);
        if let Some(range) = find_stack(&mappings, thread, stack_pointer) {
            RANGES.set(thread, [range.start, range.end]);
        }
        slot.thread.store(0, Ordering::Release);
    }
}

/// A range of addresses with memory that can be read and written.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<usize>,
    /// True if this is the stack of the process's first thread.
    is_first_stack: bool,
}

/// Returns the writable mappings in the text of `/proc/self/maps`. Adjacent ones are joined.
fn writable_mappings(text: &str) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(addresses), Some(access)) = (fields.next(), fields.next()) else { continue };
        let address = |text| usize::from_str_radix(text, 16).ok();
        let Some((Some(start), Some(end))) = addresses.split_once('-').map(|(a, b)| (address(a), address(b))) else {
            continue;
        };
        if !access.starts_with("rw") {
            continue;
        }
        let is_first_stack = line.ends_with("[stack]");
        match mappings.last_mut() {
            Some(before) if before.range.end == start && !is_first_stack => before.range.end = end,
            _ => mappings.push(Mapping { range: start..end, is_first_stack }),
        }
    }
    mappings
}

/// Returns the bounds of the stack that a stack pointer is in. `None` if the stack is not one that
/// the C library created, such as that of a coroutine.
fn find_stack(mappings: &[Mapping], thread: usize, stack_pointer: usize) -> Option<Range<usize>> {
    let mapping = mappings.iter().find(|mapping| mapping.range.contains(&stack_pointer))?;
    let Range { start, end } = mapping.range;
    if mapping.is_first_stack {
        return Some(start..end);
    }
    (stack_pointer < thread && thread < end).then_some(start..thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
5000-6000 r-xp 00000000 08:01 12 /usr/bin/python3
6000-7000 rw-p 00001000 08:01 12 /usr/bin/python3
7000-9000 rw-p 00000000 00:00 0 [heap]
a000-b000 ---p 00000000 00:00 0
b000-f000 rw-p 00000000 00:00 0
7ffd0000-7ffe0000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn stack_of_a_thread_ends_at_the_thread_pointer() {
        let mappings = writable_mappings(MAPS);
        let ranges: Vec<_> = mappings.iter().map(|mapping| mapping.range.clone()).collect();
        assert_eq!(ranges, [0x6000..0x9000, 0xb000..0xf000, 0x7ffd_0000..0x7ffe_0000]);
        assert_eq!(find_stack(&mappings, 0xe700, 0xd000), Some(0xb000..0xe700));
        assert_eq!(find_stack(&mappings, 0x8000, 0x7ffd_8000), Some(0x7ffd_0000..0x7ffe_0000));
    }

    #[test]
    fn other_stacks_are_refused() {
        let mappings = writable_mappings(MAPS);
        let refused = |thread, pointer| assert_eq!(find_stack(&mappings, thread, pointer), None);
        refused(0xe700, 0x8000);
        refused(0xe700, 0xe800);
        refused(0xe700, 0xa800);
        refused(0xe700, 0x4000);
    }

    #[test]
    fn stack_is_known_after_the_follower_has_found_it() {
        let thread = std::thread::spawn(|| {
            let local = 0_u64;
            let pointer = &raw const local as usize;
            let thread = crate::thread_table::thread_pointer();
            for _ in 0..200 {
                if let Some(range) = stack_of(thread, pointer) {
                    return range.start == pointer && range.end == thread;
                }
                find_requested();
                std::thread::sleep(Duration::from_millis(5));
            }
            false
        });
        assert!(thread.join().expect("the thread ends"));
    }
}
