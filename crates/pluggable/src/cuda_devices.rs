//! The GPUs of this machine.

use vramscope_collector::CudaDevice;
use vramscope_collector::session::lifecycle::ProcessClaim;
use vramscope_trace::DeviceInfo;

use crate::process::DeviceSource;

/// Which process has used the driver. CUDA does not work in children forked from it afterwards.
static CLAIM: ProcessClaim = ProcessClaim::new();

/// Returns true in a child of a process that had used the driver before the fork.
#[inline]
pub(crate) fn is_unusable() -> bool {
    CLAIM.is_of_parent()
}

/// The source of all GPUs that this process can use. Each is opened in its primary context, which
/// PyTorch also uses.
#[derive(Debug)]
pub(crate) struct CudaDevices;

impl DeviceSource for CudaDevices {
    type Device = CudaDevice;

    fn list(&self) -> Result<Vec<DeviceInfo>, String> {
        // Claimed before the driver is used, because a child may be forked meanwhile.
        if !CLAIM.claim() {
            return Err("this process was forked after CUDA was used, so CUDA does not work in it".to_owned());
        }
        CudaDevice::list().map_err(|error| error.to_string())
    }

    fn open(&self, number: u16) -> Result<CudaDevice, String> {
        CudaDevice::new(usize::from(number)).map_err(|error| error.to_string())
    }
}
