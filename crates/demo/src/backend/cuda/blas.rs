//! Matrix products by cuBLAS.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use cudarc::cublas::sys::{self, cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t, cudaDataType_t};
use cudarc::driver::sys::CUstream;

use super::error::{check_cublas, refused};
use super::streams::{Streams, WORKSPACE_BYTES};
use crate::backend::{Gemm, RawSlice, Result};
use crate::dtype::DType;

/// Returns true if cuBLAS is installed.
pub(super) fn is_installed() -> bool {
    // SAFETY: Loading the library runs its initializers, which are meant to run in any program.
    unsafe { sys::is_culib_present() }
}

/// A cuBLAS handle of one device.
///
/// Each run gives bitwise equal results: every stream has its own cuBLAS workspace of a fixed size,
/// and cuBLAS uses no atomic additions by default.
pub(super) struct Blas {
    handle: sys::cublasHandle_t,
    /// The stream that cuBLAS uses; `None` before the first matrix product.
    stream: Cell<Option<CUstream>>,
    allows_tf32: Cell<bool>,
}

impl Blas {
    /// Opens cuBLAS for the current context.
    pub(super) fn new() -> Result<Self> {
        let mut handle = ptr::null_mut();
        // SAFETY: cuBLAS writes to a valid variable; a context is current.
        check_cublas("cublasCreate", unsafe { sys::cublasCreate_v2(&mut handle) })?;
        let blas = Self { handle, stream: Cell::new(None), allows_tf32: Cell::new(false) };
        // Makes cuBLAS also add partial sums in f32 where it splits the inner dimension.
        let mode = sys::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: The handle was created above.
        check_cublas("cublasSetMathMode", unsafe { sys::cublasSetMathMode(handle, mode) })?;
        Ok(blas)
    }

    /// Allows or forbids TF32 in later products of `f32` matrices.
    pub(super) fn allow_tf32(&self, allow: bool) {
        self.allows_tf32.set(allow);
    }

    /// Makes cuBLAS use the current stream and this stream's workspace.
    fn follow(&self, streams: &Streams) -> Result {
        let stream = streams.current();
        if self.stream.get() == Some(stream) {
            return Ok(());
        }
        let workspace = streams.workspace()?;
        self.stream.set(None);
        // SAFETY: The handle and the stream exist.
        check_cublas("cublasSetStream", unsafe { sys::cublasSetStream_v2(self.handle, stream.cast()) })?;
        // SAFETY: The memory is only for products on this stream, has this size, and is freed after
        // the handle is destroyed. `cublasSetStream` forgets the memory of the last stream.
        let status = unsafe { sys::cublasSetWorkspace_v2(self.handle, workspace as *mut c_void, WORKSPACE_BYTES) };
        check_cublas("cublasSetWorkspace", status)?;
        self.stream.set(Some(stream));
        Ok(())
    }

    /// Computes `c = op(a) op(b)` for each matrix of the batch.
    pub(super) fn gemm(&self, streams: &Streams, [a, b, c]: [RawSlice<'_>; 3], gemm: &Gemm) -> Result {
        let Gemm { rows, inner, columns, batch, strides, .. } = *gemm;
        assert_eq!((a.dtype(), b.dtype()), (c.dtype(), c.dtype()), "the matrices differ in type");
        if rows == 0 || columns == 0 || batch == 0 {
            return Ok(());
        }
        for (slice, stride, count) in
            [(a, strides[0], rows * inner), (b, strides[1], inner * columns), (c, strides[2], rows * columns)]
        {
            assert!((batch - 1) * stride + count <= slice.len(), "the matrices are larger than their memory");
        }
        let data_type = match c.dtype() {
            DType::F32 => cudaDataType_t::CUDA_R_32F,
            DType::F16 => cudaDataType_t::CUDA_R_16F,
            DType::Bf16 => cudaDataType_t::CUDA_R_16BF,
            other => panic!("cuBLAS does not multiply {other} here"),
        };
        let compute_type = if c.dtype() == DType::F32 && self.allows_tf32.get() {
            cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            cublasComputeType_t::CUBLAS_COMPUTE_32F
        };
        let operation = |is_transposed| {
            if is_transposed { cublasOperation_t::CUBLAS_OP_T } else { cublasOperation_t::CUBLAS_OP_N }
        };
        self.follow(streams)?;
        // cuBLAS reads matrices in column-major order, so it sees the row-major matrices of this
        // crate transposed. Therefore it computes cᵀ = op(b)ᵀ op(a)ᵀ.
        let algorithm = cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT;
        let (operation_a, operation_b) = (operation(gemm.transpose_a), operation(gemm.transpose_b));
        let (lead_a, lead_b) = (
            dimension(if gemm.transpose_a { rows } else { inner })?.max(1),
            dimension(if gemm.transpose_b { inner } else { columns })?.max(1),
        );
        let (m, n, k) = (dimension(columns)?, dimension(rows)?, dimension(inner)?);
        // cuBLAS computes alpha * product + beta * c.
        let (alpha, beta) = (ptr::from_ref(&1.0f32).cast::<c_void>(), ptr::from_ref(&0.0f32).cast::<c_void>());
        let (a, b, c) = (a.address() as *const c_void, b.address() as *const c_void, c.address() as *mut c_void);
        if batch == 1 {
            // SAFETY: The matrices are within their memory, as asserted above, which the creators
            // of the slices guarantee to be live; the factors are read before the call returns.
            let status = unsafe {
                sys::cublasGemmEx(
                    self.handle,
                    operation_b,
                    operation_a,
                    m,
                    n,
                    k,
                    alpha,
                    b,
                    data_type,
                    lead_b,
                    a,
                    data_type,
                    lead_a,
                    beta,
                    c,
                    data_type,
                    m,
                    compute_type,
                    algorithm,
                )
            };
            return check_cublas("cublasGemmEx", status);
        }
        let [stride_a, stride_b, stride_c] = strides.map(|stride| stride as i64);
        // SAFETY: As above.
        let status = unsafe {
            sys::cublasGemmStridedBatchedEx(
                self.handle,
                operation_b,
                operation_a,
                m,
                n,
                k,
                alpha,
                b,
                data_type,
                lead_b,
                stride_b,
                a,
                data_type,
                lead_a,
                stride_a,
                beta,
                c,
                data_type,
                m,
                stride_c,
                dimension(batch)?,
                compute_type,
                algorithm,
            )
        };
        check_cublas("cublasGemmStridedBatchedEx", status)
    }
}

/// Converts a dimension to `i32`, the type that cuBLAS takes.
fn dimension(n: usize) -> Result<i32> {
    i32::try_from(n).map_err(|_| refused("cublasGemmEx", format!("a dimension of {n} is too large")))
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: The handle is destroyed once. If this fails, the driver has shut down.
        let _ = unsafe { sys::cublasDestroy_v2(self.handle) };
    }
}
