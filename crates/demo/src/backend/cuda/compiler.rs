//! Compiles CUDA C++ with NVRTC.

use std::ffi::{CStr, CString, c_char};
use std::ptr;

use cudarc::nvrtc::sys;

use super::error::refused;
use crate::backend::{BackendError, Result};

/// The output format and compute capability that kernels are compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Machine code (SASS) for this compute capability: 90 for 9.0.
    Machine(i32),
    /// PTX for this compute capability, which the driver compiles when it loads the module.
    Ptx(i32),
}

impl Target {
    /// Returns the machine code target of a device with this compute capability. If the device is
    /// newer than NVRTC, returns PTX of the newest compute capability that NVRTC knows.
    pub(super) fn of_device((major, minor): (i32, i32)) -> Result<Self> {
        let wanted = 10 * major + minor;
        let known = known_capabilities()?;
        match known.iter().copied().filter(|&known| known <= wanted).max() {
            Some(best) if best == wanted => Ok(Self::Machine(best)),
            Some(best) => Ok(Self::Ptx(best)),
            None => Err(refused(
                "nvrtcGetSupportedArchs",
                format!("this NVRTC does not support compute capability {major}.{minor}: install an older one"),
            )),
        }
    }
}

/// Returns true if NVRTC is installed.
pub(super) fn is_installed() -> bool {
    // SAFETY: Loading the library runs its initializers, which are meant to run in any program.
    unsafe { sys::is_culib_present() }
}

/// Returns the compute capabilities that NVRTC compiles for, such as 90 for 9.0.
fn known_capabilities() -> Result<Vec<i32>> {
    let mut count = 0;
    // SAFETY: The library is loaded and writes to a valid variable.
    check("nvrtcGetNumSupportedArchs", unsafe { sys::nvrtcGetNumSupportedArchs(&mut count) })?;
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: The library writes as many numbers as it returned above.
    check("nvrtcGetSupportedArchs", unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) })?;
    Ok(known)
}

/// Compiles `text`, the content of the file `name`. Compiled PTX ends with a 0 byte.
pub(super) fn compile(name: &str, text: &str, options: &[String], target: Target) -> Result<Vec<u8>> {
    let architecture = match target {
        Target::Machine(capability) => format!("--gpu-architecture=sm_{capability}"),
        Target::Ptx(capability) => format!("--gpu-architecture=compute_{capability}"),
    };
    let options = options.iter().cloned().chain([architecture, "--std=c++17".to_owned()]);
    let options: Vec<CString> = options.map(|option| c_string(&option)).collect::<Result<_>>()?;
    let program = Program::new(&c_string(name)?, &c_string(text)?)?;
    program.compile(name, &options)?;
    match target {
        Target::Machine(_) => program.read("nvrtcGetCUBIN", sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN),
        Target::Ptx(_) => program.read("nvrtcGetPTX", sys::nvrtcGetPTXSize, sys::nvrtcGetPTX),
    }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|error| refused("nvrtcCreateProgram", error.to_string()))
}

/// Returns an error that names the NVRTC function `call` unless it succeeded.
fn check(call: &str, status: sys::nvrtcResult) -> Result {
    match status {
        sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
        status => Err(BackendError { call: call.to_owned(), reason: format!("{status:?}") }),
    }
}

/// An NVRTC function that writes the size of compiled code or of the compiler's log, in bytes.
///
/// # Safety
/// The program exists, and the variable can be written.
type GetSize = unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult;
/// An NVRTC function that writes compiled code or the compiler's log.
///
/// # Safety
/// The program exists, and as many bytes as [`GetSize`] writes can be written.
type GetBytes = unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult;

/// An NVRTC program (a source to compile), destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(name: &CStr, text: &CStr) -> Result<Self> {
        let mut program = ptr::null_mut();
        // SAFETY: Both texts end with a 0 and NVRTC copies them; there are no headers.
        let status =
            unsafe { sys::nvrtcCreateProgram(&mut program, text.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()) };
        check("nvrtcCreateProgram", status)?;
        Ok(Self(program))
    }

    fn compile(&self, name: &str, options: &[CString]) -> Result {
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = i32::try_from(pointers.len()).map_err(|error| refused("nvrtcCompileProgram", error.to_string()))?;
        // SAFETY: `pointers` are `count` texts that end with a 0, and the program exists.
        let status = unsafe { sys::nvrtcCompileProgram(self.0, count, pointers.as_ptr()) };
        check("nvrtcCompileProgram", status).map_err(|error| {
            let log = self.read("nvrtcGetProgramLog", sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog);
            let log = log.unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            BackendError { reason: format!("{name}: {}: {}", error.reason, log.trim_end_matches('\0').trim()), ..error }
        })
    }

    /// Returns what the NVRTC function `call` writes: compiled code, or the compiler's log.
    fn read(&self, call: &str, size: GetSize, bytes: GetBytes) -> Result<Vec<u8>> {
        let mut count = 0;
        // SAFETY: The program exists, and NVRTC writes to a valid variable.
        check(call, unsafe { size(self.0, &mut count) })?;
        let mut read = vec![0; count];
        // SAFETY: NVRTC writes as many bytes as it returned above.
        check(call, unsafe { bytes(self.0, read.as_mut_ptr().cast()) })?;
        Ok(read)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: The program was created by `new`. This fails only for an invalid one.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}
