//! Reads of memory by address: directly, or with an error for an address that is not readable.

use std::ffi::{c_int, c_ulong, c_void};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::{process, ptr};

/// A way to read this process's memory by address.
///
/// The walker and the code reader are generic over it: [`DirectMemory`] on the hot path,
/// [`CheckedMemory`] in the self-check. Both run the same code.
pub(crate) trait Memory {
    /// Why a read failed.
    type Error;

    /// Copies the bytes at `address` to `target`.
    ///
    /// # Errors
    ///
    /// The bytes are not readable.
    ///
    /// # Safety
    ///
    /// With [`DirectMemory`], the `target.len()` bytes at `address` must be readable.
    unsafe fn read_bytes(&self, address: usize, target: &mut [u8]) -> Result<(), Self::Error>;

    /// Reads the byte at `base + offset`.
    ///
    /// # Errors
    ///
    /// The byte is not readable.
    ///
    /// # Safety
    ///
    /// As for [`Self::read_bytes`].
    #[inline(always)]
    unsafe fn read_byte(&self, base: usize, offset: usize) -> Result<u8, Self::Error> {
        let mut bytes = [0; 1];
        // SAFETY: The caller guarantees that the byte is readable.
        unsafe { self.read_bytes(base.wrapping_add(offset), &mut bytes)? };
        Ok(bytes[0])
    }

    /// Reads the C `int` at `base + offset`.
    ///
    /// # Errors
    ///
    /// The 4 bytes are not readable.
    ///
    /// # Safety
    ///
    /// As for [`Self::read_bytes`].
    #[inline(always)]
    unsafe fn read_int(&self, base: usize, offset: usize) -> Result<i32, Self::Error> {
        let mut bytes = [0; 4];
        // SAFETY: The caller guarantees that the 4 bytes are readable.
        unsafe { self.read_bytes(base.wrapping_add(offset), &mut bytes)? };
        Ok(i32::from_ne_bytes(bytes))
    }

    /// Reads the pointer or the `Py_ssize_t` at `base + offset`.
    ///
    /// # Errors
    ///
    /// The bytes of the word are not readable.
    ///
    /// # Safety
    ///
    /// As for [`Self::read_bytes`].
    #[inline(always)]
    unsafe fn read_word(&self, base: usize, offset: usize) -> Result<usize, Self::Error> {
        let mut bytes = [0; size_of::<usize>()];
        // SAFETY: The caller guarantees that the bytes of the word are readable.
        unsafe { self.read_bytes(base.wrapping_add(offset), &mut bytes)? };
        Ok(usize::from_ne_bytes(bytes))
    }
}

/// Memory read by plain loads, without any check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectMemory;

impl Memory for DirectMemory {
    type Error = std::convert::Infallible;

    #[inline(always)]
    unsafe fn read_bytes(&self, address: usize, target: &mut [u8]) -> Result<(), Self::Error> {
        let source = ptr::with_exposed_provenance::<u8>(address);
        // SAFETY: The caller guarantees that the bytes at `address` are readable. `target` is an
        // exclusive reference to memory of this crate, which CPython's objects do not overlap.
        unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        Ok(())
    }
}

/// A read of memory that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {length} bytes of this process's memory at {address:#x}: {source}")]
pub(crate) struct ReadError {
    /// First address of the read.
    address: usize,
    /// Number of bytes to read.
    length: usize,
    /// The system's reason.
    source: io::Error,
}

/// C's `struct iovec`: an address and a number of bytes.
#[repr(C)]
struct IoVec {
    base: *mut c_void,
    length: usize,
}

// SAFETY: Declared as in `process_vm_readv(2)`.
unsafe extern "C" {
    fn process_vm_readv(
        process: c_int,
        local: *const IoVec,
        local_count: c_ulong,
        remote: *const IoVec,
        remote_count: c_ulong,
        flags: c_ulong,
    ) -> isize;
}

/// Memory read by a system call, which reports an address that is not readable.
///
/// Uses `process_vm_readv`, or `/proc/self/mem` where a sandbox forbids that call.
#[derive(Debug)]
pub(crate) struct CheckedMemory {
    /// `/proc/self/mem`, open for reading, if `process_vm_readv` is forbidden.
    file: Option<File>,
}

impl CheckedMemory {
    /// Creates a reader of this process's memory.
    ///
    /// # Errors
    ///
    /// [`ReadError`] if the system allows neither `process_vm_readv` nor `/proc/self/mem`.
    pub(crate) fn new() -> Result<Self, ReadError> {
        let (probe, mut byte) = (0x5a_u8, [0; 1]);
        let address = (&raw const probe).expose_provenance();
        let file = match read_by_call(address, &mut byte) {
            Ok(_) => None,
            Err(_) => Some(File::open("/proc/self/mem").map_err(|source| ReadError { address, length: 1, source })?),
        };
        Ok(Self { file })
    }
}

impl Memory for CheckedMemory {
    type Error = ReadError;

    // SAFETY: The system reads the memory and reports addresses that cannot be read.
    unsafe fn read_bytes(&self, address: usize, target: &mut [u8]) -> Result<(), Self::Error> {
        let length = target.len();
        let mut done = 0;
        while done < length {
            let (from, rest) = (address.wrapping_add(done), &mut target[done..]);
            let read = match &self.file {
                Some(file) => file.read_at(rest, from as u64),
                None => read_by_call(from, rest),
            };
            done += match read {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => Ok(count),
                Err(source) if source.kind() == io::ErrorKind::Interrupted => Ok(0),
                Err(source) => Err(source),
            }
            .map_err(|source| ReadError { address, length, source })?;
        }
        Ok(())
    }
}

/// Copies bytes of this process by `process_vm_readv`. Returns how many it copied.
fn read_by_call(address: usize, target: &mut [u8]) -> io::Result<usize> {
    let process = c_int::try_from(process::id()).map_err(io::Error::other)?;
    let local = IoVec { base: target.as_mut_ptr().cast(), length: target.len() };
    let remote = IoVec { base: ptr::with_exposed_provenance_mut(address), length: target.len() };
    // SAFETY: Both counts are 1. The kernel writes at most `target.len()` bytes to `target`, and
    // checks `remote` itself.
    let count = unsafe { process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Readers of both kinds, the second through `/proc/self/mem`.
    fn readers() -> [CheckedMemory; 2] {
        let file = File::open("/proc/self/mem").expect("cannot open /proc/self/mem");
        [CheckedMemory::new().expect("cannot read memory"), CheckedMemory { file: Some(file) }]
    }

    #[test]
    fn checked_reads_equal_direct_reads() {
        let words = [0x1122_3344_5566_7788_usize, usize::MAX, 7];
        let base = words.as_ptr().expose_provenance();
        for memory in readers() {
            for offset in [0, 3, 8, 16] {
                // SAFETY: All offsets are in `words`.
                unsafe {
                    let Ok(word) = DirectMemory.read_word(base, offset);
                    let Ok(int) = DirectMemory.read_int(base, offset);
                    let Ok(byte) = DirectMemory.read_byte(base, offset);
                    assert_eq!(memory.read_word(base, offset).expect("readable"), word);
                    assert_eq!(memory.read_int(base, offset).expect("readable"), int);
                    assert_eq!(memory.read_byte(base, offset).expect("readable"), byte);
                }
            }
        }
    }

    #[test]
    fn unreadable_address_is_an_error() {
        for memory in readers() {
            for address in [0, 16, usize::MAX - 7] {
                // SAFETY: A checked read has no requirement.
                let error = unsafe { memory.read_word(address, 0) }.expect_err("not readable");
                let text = error.to_string();
                let start = format!("cannot read 8 bytes of this process's memory at {address:#x}: ");
                assert!(text.starts_with(&start), "{text}");
            }
        }
    }
}
