//! Tests that need a GPU.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use cudarc::driver::{CudaContext, result, sys};

use crate::backend::checks::{TestMemory, check};
use crate::backend::cuda::{CudaBackend, blas, compiler};
use crate::backend::{Backend, Gemm, RawSlice, Unary};
use crate::dtype::DType;

/// Returns a context of the first GPU. Without a GPU or without the libraries, prints a note and
/// returns `None`.
pub(crate) fn context() -> Option<Arc<CudaContext>> {
    // SAFETY: Loading the library runs its initializers, which are meant to run in any program.
    let has_driver = unsafe { sys::is_culib_present() };
    let missing = if !has_driver {
        "a GPU's driver"
    } else if !compiler::is_installed() {
        "NVRTC"
    } else if !blas::is_installed() {
        "cuBLAS"
    } else {
        match CudaContext::new(0) {
            Ok(context) => return Some(context),
            Err(_) => "a GPU",
        }
    };
    println!("SKIPPED: this machine lacks {missing}");
    None
}

/// Device memory for tests, allocated by `cuMemAlloc` and freed when `self` is dropped.
pub(super) struct DriverMemory {
    context: Arc<CudaContext>,
    addresses: RefCell<Vec<u64>>,
}

impl DriverMemory {
    pub(super) fn new(context: &Arc<CudaContext>) -> Self {
        Self { context: Arc::clone(context), addresses: RefCell::default() }
    }

    /// Allocates `bytes` bytes and returns their address.
    pub(super) fn address(&self, bytes: usize) -> u64 {
        self.context.bind_to_thread().unwrap();
        // SAFETY: The size is not 0.
        let address = unsafe { result::malloc_sync(bytes.max(1)) }.unwrap();
        self.addresses.borrow_mut().push(address);
        address
    }

    /// Allocates a tensor of `len` elements.
    pub(super) fn slice(&self, len: usize, dtype: DType) -> RawSlice<'_> {
        // SAFETY: The memory is new, of this size, and freed when `self` is dropped.
        unsafe { RawSlice::new(self.address(len * dtype.bytes()), len, dtype) }
    }
}

impl TestMemory for DriverMemory {
    fn allocate(&self, bytes: usize) -> u64 {
        self.address(bytes)
    }
}

impl Drop for DriverMemory {
    fn drop(&mut self) {
        for address in self.addresses.get_mut().drain(..) {
            // SAFETY: The memory was allocated by `address`, and tests have dropped its slices.
            let _ = unsafe { result::free_sync(address) };
        }
    }
}

#[test]
fn cuda_backend() {
    let Some(context) = context() else { return };
    let memory = DriverMemory::new(&context);
    let backend = CudaBackend::new(&context).unwrap_or_else(|error| panic!("{error}"));
    check(Box::leak(Box::new(backend)), &memory);
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn numbers(backend: &CudaBackend, slice: RawSlice<'_>) -> Vec<f32> {
    let mut read = vec![0; slice.bytes()];
    backend.download(slice, &mut read).unwrap();
    read.as_chunks::<4>().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

/// Streams, staging buffers, and a recording that contains a matrix product.
#[test]
fn cuda_streams_and_graphs() {
    let Some(context) = context() else { return };
    let memory = DriverMemory::new(&context);
    let backend = Rc::new(CudaBackend::new(&context).unwrap());
    assert_eq!(backend.stream_id(0).unwrap().0, 0);
    assert_ne!(backend.stream_id(2).unwrap().0, backend.stream_id(1).unwrap().0);
    let address = |len: usize| memory.address(4 * len);
    // SAFETY: The memory is live until `memory` is dropped, after the graph.
    let slice = |address: u64| unsafe { RawSlice::new(address, 4, DType::F32) };
    let (a, b, c) = (address(4), address(4), address(4));
    let gemm = Gemm { rows: 2, inner: 2, columns: 2, transpose_a: false, transpose_b: true, batch: 1, strides: [0; 3] };
    for index in [0, 1] {
        backend.set_stream(index).unwrap();
        let work = {
            let backend = Rc::clone(&backend);
            move || {
                backend.gemm(slice_of(a), slice_of(b), slice_of(c), &gemm)?;
                // Another stream takes part in the recording.
                backend.wait_stream(3, index)?;
                backend.set_stream(3)?;
                backend.kernels().unary(Unary::Relu, slice_of(c), slice_of(a))?;
                backend.wait_stream(index, 3)?;
                backend.set_stream(index)
            }
        };
        // cuBLAS loads its kernels at their first use, which must not happen in the recording.
        work().unwrap();
        backend.upload(&bytes(&[1.0, 2.0, 3.0, 4.0]), slice(a)).unwrap();
        backend.upload(&bytes(&[5.0, 6.0, 7.0, 8.0]), slice(b)).unwrap();
        backend.fill(slice(c), -1.0).unwrap();
        let graph = backend.capture(Box::new(work)).unwrap();
        assert_eq!(numbers(&backend, slice(c)), [-1.0; 4], "a recording runs nothing");
        graph.replay().unwrap();
        assert_eq!(numbers(&backend, slice(c)), [17.0, 23.0, 39.0, 53.0]);
        graph.replay().unwrap();
        assert_eq!(numbers(&backend, slice(a)), [223.0, 303.0, 513.0, 697.0]);
        let refused = Rc::clone(&backend);
        let result = backend.capture(Box::new(move || refused.upload(&[0; 16], slice_of(a))));
        assert!(result.is_err(), "pageable memory cannot be recorded");
        let mut staging = backend.staging_buffer(64).unwrap();
        for value in [1.0, 2.0, 3.0] {
            staging.bytes_mut().unwrap()[..16].copy_from_slice(&bytes(&[value; 4]));
            backend.upload_staged(&*staging, slice(b)).unwrap();
            backend.wait_stream(1 - index, index).unwrap();
            backend.set_stream(1 - index).unwrap();
            assert_eq!(numbers(&backend, slice(b)), [value; 4]);
            backend.set_stream(index).unwrap();
        }
    }
    backend.synchronize().unwrap();
}

/// Returns a slice of four elements for a recording, which outlives the borrow of the memory.
fn slice_of(address: u64) -> RawSlice<'static> {
    // SAFETY: The test keeps the memory until the graph is dropped.
    unsafe { RawSlice::new(address, 4, DType::F32) }
}
