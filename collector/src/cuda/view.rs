//! Parts of a [`PoolSlice`] on a GPU, accepted wherever cudarc's views are.
//!
//! cudarc's own view types cannot be used: they do not report on which streams they are used.

use std::fmt;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use cudarc::driver::{
    CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop, sys,
};

use super::device::CudaDevice;
use super::order::{UseOrder, synchronize_if_unordered};
use crate::buffer::PoolSlice;
use crate::memory::Element;

/// A read-only part of a [`PoolSlice`] on a GPU. cudarc's copies, launches and libraries accept it
/// like a `CudaView`.
pub struct PoolView<'a, T> {
    view: CudaView<'a, T>,
    address: sys::CUdeviceptr,
    own: &'a Arc<CudaStream>,
    order: &'a UseOrder,
}

/// A mutable part of a [`PoolSlice`] on a GPU. cudarc's copies, launches and libraries accept it
/// like a `CudaViewMut`.
pub struct PoolViewMut<'a, T> {
    view: CudaViewMut<'a, T>,
    address: sys::CUdeviceptr,
    own: &'a Arc<CudaStream>,
    order: &'a UseOrder,
}

impl<T: Element> PoolSlice<T, CudaDevice> {
    /// Returns a view of the whole buffer.
    #[must_use]
    pub fn as_view(&self) -> PoolView<'_, T> {
        let (buffer, own) = (self.buffer(), self.stream());
        let tracked = buffer.tracked();
        PoolView { view: tracked.slice.as_view(), address: *buffer.address(), own, order: &tracked.order }
    }

    /// Returns a mutable view of the whole buffer.
    #[must_use]
    pub fn as_view_mut(&mut self) -> PoolViewMut<'_, T> {
        let (address, own, tracked) = self.buffer_mut().parts_mut();
        PoolViewMut { view: tracked.slice.as_view_mut(), address, own, order: &tracked.order }
    }
}

/// Converts `bounds` of a buffer with `len` numbers to a range of indices; a missing bound is 0 or
/// `len`. Each bound is read once. cudarc checks later that the range is inside the buffer.
fn range(bounds: impl RangeBounds<usize>, len: usize) -> Range<usize> {
    let after = |index: usize| index.checked_add(1).expect("the bounds are outside the buffer: a bound is usize::MAX");
    let start = match bounds.start_bound() {
        Bound::Included(&first) => first,
        Bound::Excluded(&before) => after(before),
        Bound::Unbounded => 0,
    };
    let end = match bounds.end_bound() {
        Bound::Included(&last) => after(last),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    start..end
}

/// Returns the address of number `index` in an array of `T` that begins at `start`.
fn address_of<T>(start: sys::CUdeviceptr, index: usize) -> sys::CUdeviceptr {
    start + (index * size_of::<T>()) as sys::CUdeviceptr
}

impl<'a, T> PoolView<'a, T> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// Returns true if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// Returns the part of the view with the element indices `bounds`, counted from the view's
    /// start.
    ///
    /// # Panics
    /// If `bounds` are outside the view.
    #[must_use]
    pub fn slice(&self, bounds: impl RangeBounds<usize>) -> PoolView<'a, T> {
        let Range { start, end } = range(bounds, self.len());
        let Self { view, address, own, order } = self;
        PoolView { view: view.slice(start..end), address: address_of::<T>(*address, start), own, order }
    }
}

impl<T> PoolViewMut<'_, T> {
    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// Returns true if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// Returns the part of the view with the element indices `bounds`, counted from the view's
    /// start, for reading only.
    ///
    /// # Panics
    /// If `bounds` are outside the view.
    #[must_use]
    pub fn slice(&self, bounds: impl RangeBounds<usize>) -> PoolView<'_, T> {
        let Range { start, end } = range(bounds, self.len());
        let Self { view, address, own, order } = self;
        PoolView { view: view.slice(start..end), address: address_of::<T>(*address, start), own, order }
    }

    /// Returns the part of the view with the element indices `bounds`, counted from the view's
    /// start, for reading and writing.
    ///
    /// # Panics
    /// If `bounds` are outside the view.
    #[must_use]
    pub fn slice_mut(&mut self, bounds: impl RangeBounds<usize>) -> PoolViewMut<'_, T> {
        let Range { start, end } = range(bounds, self.len());
        let Self { view, address, own, order } = self;
        PoolViewMut { view: view.slice_mut(start..end), address: address_of::<T>(*address, start), own, order }
    }
}

impl<T> DeviceSlice<T> for PoolView<'_, T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.own
    }
}

impl<T> DeviceSlice<T> for PoolViewMut<'_, T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.own
    }
}

impl<T> DevicePtr<T> for PoolView<'_, T> {
    fn device_ptr<'b>(&'b self, stream: &'b CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'b>) {
        (self.address, synchronize_if_unordered(self.own, stream).unwrap_or_else(|| self.order.read_on(stream)))
    }
}

impl<T> DevicePtr<T> for PoolViewMut<'_, T> {
    fn device_ptr<'b>(&'b self, stream: &'b CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'b>) {
        (self.address, synchronize_if_unordered(self.own, stream).unwrap_or_else(|| self.order.read_on(stream)))
    }
}

impl<T> DevicePtrMut<T> for PoolViewMut<'_, T> {
    fn device_ptr_mut<'b>(&'b mut self, stream: &'b CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'b>) {
        if let Some(written) = synchronize_if_unordered(self.own, stream) {
            return (self.address, written);
        }
        self.order.wait_for_uses(stream);
        (self.address, self.view.device_ptr_mut(stream).1)
    }
}

// SAFETY: The pushed argument is cudarc's own view of this part of the buffer; the borrow keeps it
// until the launch. The caller of the launch, which is `unsafe`, guarantees what the kernel does.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b PoolView<'c, T>> for LaunchArgs<'a> {
    #[inline]
    fn arg(&mut self, part: &'b PoolView<'c, T>) -> &mut Self {
        part.order.before_kernel_reads();
        <Self as PushKernelArg<&'b CudaView<'c, T>>>::arg(self, &part.view)
    }
}

// SAFETY: The argument is pushed as for a shared reference, and `&mut` makes the access exclusive.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b mut PoolViewMut<'c, T>> for LaunchArgs<'a> {
    #[inline]
    fn arg(&mut self, part: &'b mut PoolViewMut<'c, T>) -> &mut Self {
        part.order.before_kernel_writes();
        <Self as PushKernelArg<&'b mut CudaViewMut<'c, T>>>::arg(self, &mut part.view)
    }
}

impl<T> fmt::Debug for PoolView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = format_args!("{:#x}", self.address);
        f.debug_struct("PoolView").field("address", &address).field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for PoolViewMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = format_args!("{:#x}", self.address);
        f.debug_struct("PoolViewMut").field("address", &address).field("len", &self.len()).finish_non_exhaustive()
    }
}
