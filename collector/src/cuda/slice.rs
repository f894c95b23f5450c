//! A [`PoolSlice`] on a GPU as cudarc sees it: in every place where a `CudaSlice` may stand.

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

// SAFETY: What is pushed is the address of the numbers, kept where it stays for as long as the borrow, as a kernel takes a pointer.
// While there are several streams it is cudarc's own slice of the same memory that is pushed, with the events of its uses.
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

// SAFETY: As above.
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
