//! cudarc's traits for a [`PoolSlice`] on a GPU, so that it is accepted wherever a `CudaSlice` is.

use std::sync::Arc;

use cudarc::driver::{
    CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs, PushKernelArg, SyncOnDrop, sys,
};

use super::device::CudaDevice;
use crate::buffer::PoolSlice;
use crate::memory::Element;

impl<T: Element> DeviceSlice<T> for PoolSlice<T, CudaDevice> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.stream()
    }
}

impl<T: Element> DevicePtr<T> for PoolSlice<T, CudaDevice> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.buffer().device_ptr(stream)
    }
}

impl<T: Element> DevicePtrMut<T> for PoolSlice<T, CudaDevice> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (sys::CUdeviceptr, SyncOnDrop<'a>) {
        self.buffer_mut().device_ptr_mut(stream)
    }
}

// SAFETY: The pushed argument is the address of the numbers, which is what kernels expect of a
// pointer; the borrowed buffer keeps it where it is until the launch. With several streams it is
// cudarc's own slice of the buffer's memory, with the events of its uses. The caller of the launch,
// which is `unsafe`, guarantees what the kernel does with the memory.
unsafe impl<'a, 'b: 'a, T: Element> PushKernelArg<&'b PoolSlice<T, CudaDevice>> for LaunchArgs<'a> {
    #[inline]
    fn arg(&mut self, slice: &'b PoolSlice<T, CudaDevice>) -> &mut Self {
        let buffer = slice.buffer();
        if buffer.is_tracking() {
            let tracked = buffer.tracked();
            tracked.order.before_kernel_reads();
            <Self as PushKernelArg<&'b CudaSlice<T>>>::arg(self, &tracked.slice)
        } else {
            if let Some(tracked) = buffer.already_tracked() {
                tracked.order.before_kernel_reads();
            }
            <Self as PushKernelArg<&'b u64>>::arg(self, buffer.address())
        }
    }
}

// SAFETY: The argument is pushed as for a shared reference, and `&mut` makes the access exclusive.
unsafe impl<'a, 'b: 'a, T: Element> PushKernelArg<&'b mut PoolSlice<T, CudaDevice>> for LaunchArgs<'a> {
    #[inline]
    fn arg(&mut self, slice: &'b mut PoolSlice<T, CudaDevice>) -> &mut Self {
        let buffer = slice.buffer_mut();
        if buffer.is_tracking() {
            let tracked = buffer.tracked_mut();
            tracked.order.before_kernel_writes();
            <Self as PushKernelArg<&'b mut CudaSlice<T>>>::arg(self, &mut tracked.slice)
        } else {
            if let Some(tracked) = buffer.already_tracked() {
                tracked.order.before_kernel_writes();
            }
            <Self as PushKernelArg<&'b u64>>::arg(self, buffer.address())
        }
    }
}
