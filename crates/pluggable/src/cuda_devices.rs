//! The GPUs of this machine.

use vramscope_collector::CudaDevice;
use vramscope_trace::DeviceInfo;

use crate::process::DeviceSource;

/// Every GPU that the driver shows this process, each in its primary context, which PyTorch uses
/// too.
#[derive(Debug)]
pub(crate) struct CudaDevices;

impl DeviceSource for CudaDevices {
    type Device = CudaDevice;

    fn list(&self) -> Result<Vec<DeviceInfo>, String> {
        CudaDevice::list().map_err(|error| error.to_string())
    }

    fn open(&self, number: u16) -> Result<CudaDevice, String> {
        CudaDevice::new(usize::from(number)).map_err(|error| error.to_string())
    }
}
