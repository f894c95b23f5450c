//! A `std::function<void(const TraceEntry&)>` of libstdc++, made in Rust.
//!
//! PyTorch's wheels are built with libstdc++, whose `std::function` has had this layout since GCC
//! 4: 16 bytes for the functor, a function that manages it, and a function that calls it
//! (`bits/std_function.h`).

use std::ffi::c_void;

/// A function that receives trace entries, under the allocator's lock of the entry's device.
///
/// # Safety
/// The second argument points to a `TraceEntry`.
pub(crate) type TrackerFn = unsafe extern "C" fn(*const c_void, *const u8);

/// The functor of a [`StdFunction`], which is empty: the tracker's state is in static variables.
type Functor = [usize; 2];
/// A function that copies or destroys a functor, or returns its type or address, as the number of
/// the operation says.
///
/// # Safety
/// The functors are valid as the operation requires.
type Manager = unsafe extern "C" fn(*mut Functor, *const Functor, u32) -> bool;

/// Number of the manager's operation that returns the functor's `std::type_info`.
const GET_TYPE_INFO: u32 = 0;
/// Number of the manager's operation that returns the functor's address.
const GET_FUNCTOR_POINTER: u32 = 1;

/// A `std::function<void(const TraceEntry&)>`. PyTorch copies it and calls the copies.
#[repr(C)]
pub(crate) struct StdFunction {
    functor: Functor,
    manager: Option<Manager>,
    invoker: TrackerFn,
}

impl StdFunction {
    /// Creates a `std::function` that calls `tracker`. It needs no destructor: its functor is
    /// empty.
    pub(crate) fn new(tracker: TrackerFn) -> Self {
        Self { functor: [0, 0], manager: Some(manage), invoker: tracker }
    }
}

/// Manages an empty functor: copying and destroying do nothing.
///
/// # Safety
/// See [`Manager`].
unsafe extern "C" fn manage(target: *mut Functor, source: *const Functor, operation: u32) -> bool {
    let result = match operation {
        // Returns no type, so `target_type()` is null; PyTorch never calls it.
        GET_TYPE_INFO => 0,
        GET_FUNCTOR_POINTER => source.addr(),
        _ => return false,
    };
    // SAFETY: For these operations libstdc++ passes a functor that receives a pointer.
    unsafe { (*target)[0] = result };
    false
}
