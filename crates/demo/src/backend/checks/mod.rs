//! Tests of every kernel, for any backend.
//!
//! [`check`] compares the results of a backend with a reference, computed in `f64` in the simplest
//! way. A test case is data: types, sizes, which arguments share memory with results. Each case
//! runs twice, and both runs must give equal bits.

use super::Backend;
use tester::Tester;

mod elementwise;
mod images;
mod layout;
mod losses;
mod matrix;
mod norms;
mod optimizers;
mod rows;
mod sums;
mod tables;
mod tester;
mod work;

/// An allocator of memory for tests, on the device of a backend.
pub(crate) trait TestMemory {
    /// Allocates `bytes` bytes, aligned to 256, which stay allocated as long as `self` exists.
    fn allocate(&self, bytes: usize) -> u64;
}

/// Checks all methods of a backend. The backend is `'static`, as from `Box::leak`, because the
/// closure of [`Backend::capture`] cannot borrow it.
///
/// # Panics
/// If a result is wrong, after all cases have run; the message has every failure.
pub(crate) fn check(backend: &'static dyn Backend, memory: &dyn TestMemory) {
    let tester = Tester::new(backend, memory);
    work::check(&tester);
    layout::check(&tester);
    elementwise::check(&tester);
    sums::check(&tester);
    matrix::check(&tester);
    rows::check(&tester);
    norms::check(&tester);
    tables::check(&tester);
    losses::check(&tester);
    images::check(&tester);
    optimizers::check(&tester);
    tester.finish();
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::backend::host::HostBackend;

    /// Test memory of the host, as boxed slices.
    #[derive(Default)]
    struct HostTestMemory(RefCell<Vec<Box<[Aligned]>>>);

    #[derive(Clone, Copy)]
    #[repr(align(256))]
    struct Aligned([u8; 256]);

    impl TestMemory for HostTestMemory {
        fn allocate(&self, bytes: usize) -> u64 {
            let mut memory = vec![Aligned([0; 256]); bytes.div_ceil(256)].into_boxed_slice();
            let address = memory.as_mut_ptr().expose_provenance() as u64;
            assert!(memory.first().is_none_or(|first| first.0[0] == 0), "new memory is zero");
            self.0.borrow_mut().push(memory);
            address
        }
    }

    #[test]
    fn host_backend_equals_the_reference() {
        check(Box::leak(Box::new(HostBackend::new())), &HostTestMemory::default());
    }
}
