//! The paths of scopes, such as `step/forward`, and their numbers.
//!
//! The table takes no lock, because a lock that another thread held at a fork would stay locked in
//! the child. So a forked child has its parent's paths, and can add others.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Maximum number of different scope paths in a process. A program that puts numbers into names
/// could create any number of paths; beyond the limit, a new scope counts as the scope around it.
pub(crate) const MAX_PATHS: usize = 1 << 16;

/// Number of lists (hash buckets) of the path table: with [`MAX_PATHS`] paths, each has 16 on
/// average.
const LISTS: usize = 1 << 12;

/// A path in a list of the table. It stays until the process ends.
struct Path {
    text: Box<str>,
    number: u32,
    /// The next path of the list; null for the last one.
    next: *const Self,
}

/// The first path of each list, by the hash of the text; null for none.
static FIRST: [AtomicPtr<Path>; LISTS] = [const { AtomicPtr::new(ptr::null_mut()) }; LISTS];

/// The paths by number, the first of which is 1; null for an unused number. An unused page of the
/// table takes no memory.
static BY_NUMBER: [AtomicPtr<Path>; MAX_PATHS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_PATHS];

/// The newest number. Threads that add paths at once may raise it above [`MAX_PATHS`], each by at
/// most 1.
static NEWEST: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// Paths that this thread has opened, by outer path and name, so that opening a scope again
    /// needs no search.
    static KNOWN: RefCell<HashMap<PathId, HashMap<Box<str>, PathId>>> = RefCell::new(HashMap::new());
}

/// Number of a scope path such as `step/forward`, equal in all threads; 0 means outside all scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct PathId(pub(crate) u32);

impl PathId {
    /// Calls `f` with the path's text, such as `step/forward`, and returns its result. The text is
    /// empty outside all scopes.
    pub(crate) fn with_text<R>(self, f: impl FnOnce(&str) -> R) -> R {
        let slot = (self.0 as usize).checked_sub(1).and_then(|index| BY_NUMBER.get(index));
        // SAFETY: The pointer is null or of a path that stays until the process ends.
        let path = slot.and_then(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() });
        f(path.map_or("", |path| &path.text))
    }

    /// Returns the path of a scope `name` opened in this path.
    pub(crate) fn inside(self, name: &str) -> Self {
        let known = KNOWN.try_with(|known| known.borrow().get(&self)?.get(name).copied());
        if let Ok(Some(path)) = known {
            return path;
        }
        let path = self.number_for(name);
        if path == self {
            // The limit is reached. The path is not cached, so that `KNOWN` does not grow either.
            return path;
        }
        // The table may already be destroyed if the thread is exiting.
        let _ = KNOWN.try_with(|known| known.borrow_mut().entry(self).or_default().insert(name.into(), path));
        path
    }

    /// Returns the path of a scope `name` opened in this path, and numbers the path if it is new.
    /// Once there are [`MAX_PATHS`], returns this path instead.
    #[cold]
    fn number_for(self, name: &str) -> Self {
        let text = self.with_text(|outer| if outer.is_empty() { name.to_owned() } else { format!("{outer}/{name}") });
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&text);
        let first = &FIRST[(hash % LISTS as u64) as usize];
        let mut newest = first.load(Ordering::Acquire);
        if let Some(known) = find(newest, ptr::null(), &text) {
            return known;
        }
        if NEWEST.load(Ordering::Relaxed) as usize >= MAX_PATHS {
            return self;
        }
        let number = NEWEST.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(slot) = BY_NUMBER.get(number as usize - 1) else { return self };
        // Never freed: other threads may read it at any time.
        let new = Box::into_raw(Box::new(Path { text: text.clone().into(), number, next: newest }));
        // Stored before the path is added to its list: a thread that finds the path there reads its
        // text by number.
        slot.store(new, Ordering::Release);
        while let Err(other) = first.compare_exchange(newest, new, Ordering::AcqRel, Ordering::Acquire) {
            if let Some(known) = find(other, newest, &text) {
                return known;
            }
            newest = other;
            // SAFETY: The pointer is that of the box. No other thread reads `next` before the path
            // is in the list.
            unsafe { (*new).next = newest };
        }
        Self(number)
    }
}

/// Searches a list from the path `first` to the path before `end`.
fn find(first: *const Path, end: *const Path, text: &str) -> Option<PathId> {
    let mut next = first;
    while next != end {
        // SAFETY: Paths of a list stay until the process ends, and the last one's `next` is null,
        // which is `end` or comes after it.
        let path = unsafe { next.as_ref() }?;
        if *path.text == *text {
            return Some(PathId(path.number));
        }
        next = path.next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_open_paths_at_once_agree_on_their_numbers() {
        const NAMES: usize = 3000;
        let name = |number| format!("path {number}");
        let open = || (0..NAMES).map(|number| PathId(0).inside(&name(number))).collect::<Vec<_>>();
        let found: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no thread panics")).collect()
        });
        assert!(found.iter().all(|paths| *paths == found[0]));
        for (number, path) in found[0].iter().enumerate() {
            assert_eq!(path.with_text(str::to_owned), name(number));
        }
        let inner = found[0][7].inside("inner");
        assert_eq!(inner.with_text(str::to_owned), "path 7/inner");
        assert_eq!(PathId(u32::MAX).with_text(str::to_owned), "");
    }
}
