//! Checks in debug builds that a program never waits for a network.
//!
//! A training thread takes locks of the recorder. The recorder's thread takes locks of the hub,
//! which it shares with the threads that push to a server or broker. No thread waits for a network
//! while it holds one of these locks, so a server that does not answer delays no training step.
//! [`Wait`] lists the waits in order: code that forbids one also forbids all later ones.
//!
//! | thread | must not wait for |
//! | --- | --- |
//! | in a call of a [`RecorderHandle`](crate::RecorderHandle) | a lock of the hub, the network |
//! | that holds the lock of a pool, or of the recorder | a lock of the hub, the network |
//! | that holds a lock of the hub, or publishes to it | the network |
//! | of the recorder | the network |
//!
//! Code that may wait calls [`Wait::begin`], and panics if a caller on its thread
//! [forbids](Wait::forbid) the wait. Thus every test that records checks the order, also on a busy
//! machine, without measuring how long a call takes. Release builds check nothing and store
//! nothing.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, MutexGuard, PoisonError};

/// A wait of a thread. A thread may begin waits in this order only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The lock of the recorder's state.
    Recorder,
    /// A lock of the hub.
    Hub,
    /// A server or broker.
    Network,
}

#[cfg(debug_assertions)]
thread_local! {
    /// For each [`Wait`], the number of [`Forbidden`] values on this thread that forbid it and all
    /// later waits.
    static FORBIDDEN: std::cell::Cell<[u32; 3]> = const { std::cell::Cell::new([0; 3]) };
}

impl Wait {
    /// Checks that this thread is allowed to begin this wait.
    ///
    /// # Panics
    /// In debug builds, if a caller has forbidden the wait.
    #[inline(always)]
    pub(crate) fn begin(self) {
        #[cfg(debug_assertions)]
        if !std::thread::panicking() {
            let forbidden = FORBIDDEN.get();
            let is_forbidden = forbidden[..=self as usize].iter().any(|&count| count > 0);
            assert!(!is_forbidden, "this thread must not wait for {self:?}: a program would wait for it, too");
        }
    }

    /// Forbids this wait and all later ones on this thread, until the result is dropped.
    #[inline(always)]
    pub(crate) fn forbid(self) -> Forbidden {
        #[cfg(debug_assertions)]
        Forbidden::add(self, 1);
        Forbidden {
            #[cfg(debug_assertions)]
            wait: self,
            #[cfg(debug_assertions)]
            of_thread: std::marker::PhantomData,
        }
    }
}

/// A guard that forbids a wait on its thread until it is dropped.
pub(crate) struct Forbidden {
    #[cfg(debug_assertions)]
    wait: Wait,
    /// Prevents moving the guard to another thread.
    #[cfg(debug_assertions)]
    of_thread: std::marker::PhantomData<*const ()>,
}

#[cfg(debug_assertions)]
impl Forbidden {
    /// Adds `change` (1 or -1) to the number of [`Forbidden`] values that forbid `wait` on this
    /// thread.
    fn add(wait: Wait, change: i32) {
        let mut forbidden = FORBIDDEN.get();
        let count = &mut forbidden[wait as usize];
        *count = count.checked_add_signed(change).expect("each is dropped once");
        FORBIDDEN.set(forbidden);
    }
}

#[cfg(debug_assertions)]
impl Drop for Forbidden {
    fn drop(&mut self) {
        Self::add(self.wait, -1);
    }
}

/// A mutex guard that forbids some waits on its thread while the lock is held.
pub(crate) struct CheckedGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    forbidden: Forbidden,
}

impl<'a, T> CheckedGuard<'a, T> {
    /// Forbids `wait` for as long as the lock is held.
    #[inline(always)]
    pub(crate) fn new(guard: MutexGuard<'a, T>, wait: Wait) -> Self {
        Self { guard, forbidden: wait.forbid() }
    }

    /// Releases the lock until `condvar` is notified, and locks it again, also after a thread that
    /// held the lock has panicked.
    pub(crate) fn wait(self, condvar: &Condvar) -> Self {
        let guard = condvar.wait(self.guard).unwrap_or_else(PoisonError::into_inner);
        Self { guard, forbidden: self.forbidden }
    }

    /// [Waits](Self::wait) repeatedly while `condition` returns true.
    pub(crate) fn wait_while(self, condvar: &Condvar, condition: impl FnMut(&mut T) -> bool) -> Self {
        let guard = condvar.wait_while(self.guard, condition).unwrap_or_else(PoisonError::into_inner);
        Self { guard, forbidden: self.forbidden }
    }
}

impl<T> Deref for CheckedGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for CheckedGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "must not wait for Network")]
    fn forbidden_wait_panics() {
        let _forbidden = Wait::Hub.forbid();
        Wait::Network.begin();
    }

    #[test]
    fn waits_are_allowed_before_and_after_they_are_forbidden() {
        let first = Wait::Recorder.forbid();
        let second = Wait::Hub.forbid();
        // Guards may be dropped in any order.
        drop(first);
        Wait::Recorder.begin();
        drop(second);
        Wait::Network.begin();
        let _forbidden = Wait::Recorder.forbid();
        std::thread::scope(|scope| scope.spawn(|| Wait::Network.begin()).join().expect("other threads may wait"));
    }
}
