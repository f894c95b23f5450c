//! Typed memory from the pool.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::slice;

use vramscope_pool::{AllocateError, MIN_BLOCK_BYTES};

use crate::pool::HostPool;

/// A number that a [`PoolSlice`] may hold. The trait is sealed: that zero bytes are a value, and that there is nothing to drop, is
/// what the unsafe code here relies on.
pub trait Element: sealed::Sealed + Copy + Send + Sync + fmt::Debug + 'static {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($number:ty)*) => { $(
        impl sealed::Sealed for $number {}
        impl Element for $number {}
    )* };
}

elements!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

/// Numbers in memory of a [`HostPool`], to which it returns when dropped.
///
/// Why the memory is this slice's own: live blocks of a pool never overlap, and the block is live until the drop. Why it is there:
/// the device keeps a segment's memory map until the pool releases it, which the pool does only where no block is live; and the
/// device itself stays until the last handle of the pool is gone, of which this slice has one. Why it is aligned: segments begin at
/// multiples of 2 MiB, blocks in them at multiples of [`MIN_BLOCK_BYTES`], and no [`Element`] asks for more.
pub struct PoolSlice<T: Element> {
    pool: HostPool,
    /// The first number; dangling where there is none.
    start: NonNull<T>,
    len: usize,
    /// The line that asked for it, which is also where its free is said to come from: a drop knows no line of its own.
    location: &'static Location<'static>,
}

// SAFETY: A `PoolSlice` owns its memory alone, as a `Box<[T]>` does, and `T` may be sent and shared (`Element` demands it). The
// pool handle is `Send` and `Sync`, its state being behind a lock.
unsafe impl<T: Element> Send for PoolSlice<T> {}
// SAFETY: As above; through a shared reference the numbers can only be read.
unsafe impl<T: Element> Sync for PoolSlice<T> {}

impl<T: Element> PoolSlice<T> {
    /// Takes memory for `len` numbers out of the pool and lets `fill` write them all.
    ///
    /// # Safety
    /// `fill` writes each of the `len` numbers behind the pointer that it is given, and nothing else.
    unsafe fn new_filled(
        pool: &HostPool,
        len: usize,
        location: &'static Location<'static>,
        fill: impl FnOnce(*mut T),
    ) -> Result<Self, AllocateError> {
        const { assert!(align_of::<T>() as u64 <= MIN_BLOCK_BYTES, "blocks lie at multiples of their smallest size") };
        let bytes = len.saturating_mul(size_of::<T>()) as u64;
        let Some(block) = pool.allocate(bytes, location)? else {
            return Ok(Self { pool: pool.clone(), start: NonNull::dangling(), len: 0, location });
        };
        let start = NonNull::new(ptr::with_exposed_provenance_mut::<T>(block.address as usize));
        let start = start.expect("the pool refuses segments at address 0");
        // Whatever happens in `fill`, the block goes back to the pool.
        let memory = Self { pool: pool.clone(), start, len, location };
        fill(start.as_ptr());
        Ok(memory)
    }

    /// The pool that the memory is from.
    #[must_use]
    pub fn pool(&self) -> &HostPool {
        &self.pool
    }

    /// The address of the first number, as events name it.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }
}

impl HostPool {
    /// `len` zeros.
    ///
    /// # Errors
    /// When there is no room for them.
    #[track_caller]
    pub fn zeros<T: Element>(&self, len: usize) -> Result<PoolSlice<T>, AllocateError> {
        // SAFETY: `write_bytes` sets every byte of `len` numbers. Zero bytes are a value of every `Element`.
        unsafe { PoolSlice::new_filled(self, len, Location::caller(), |start: *mut T| ptr::write_bytes(start, 0, len)) }
    }

    /// `len` times `value`.
    ///
    /// # Errors
    /// When there is no room for them.
    #[track_caller]
    pub fn full<T: Element>(&self, len: usize, value: T) -> Result<PoolSlice<T>, AllocateError> {
        let fill = |start: *mut T| {
            for place in 0..len {
                // SAFETY: `place < len`, and `new_filled` gives a pointer to memory for `len` numbers.
                unsafe { start.add(place).write(value) };
            }
        };
        // SAFETY: `fill` writes each of the `len` numbers.
        unsafe { PoolSlice::new_filled(self, len, Location::caller(), fill) }
    }

    /// The same numbers as `values`.
    ///
    /// # Errors
    /// When there is no room for them.
    #[track_caller]
    pub fn copy_of<T: Element>(&self, values: &[T]) -> Result<PoolSlice<T>, AllocateError> {
        let fill = |start: *mut T| {
            // SAFETY: Both sides are `values.len()` numbers, and memory fresh from the pool overlaps nothing that is in use.
            unsafe { ptr::copy_nonoverlapping(values.as_ptr(), start, values.len()) };
        };
        // SAFETY: `fill` writes each of the `values.len()` numbers.
        unsafe { PoolSlice::new_filled(self, values.len(), Location::caller(), fill) }
    }
}

impl<T: Element> Deref for PoolSlice<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` points at `len` numbers, all written before this slice was returned, in memory that is its own, is there
        // and is aligned, as its documentation argues. Where `len` is 0 the pointer is dangling but aligned, which will do.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> DerefMut for PoolSlice<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: As for `deref`; the exclusive reference to the `PoolSlice` makes this one exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Element> Drop for PoolSlice<T> {
    fn drop(&mut self) {
        if self.len > 0 {
            self.pool.free(self.address(), self.location);
        }
    }
}

impl<T: Element> fmt::Debug for PoolSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
