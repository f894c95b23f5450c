//! Runs one case: allocates its tensors, runs the kernel and compares the results.

use std::cell::{Cell, RefCell};

use half::{bf16, f16};

use super::TestMemory;
use crate::backend::{Backend, Kernels, RawSlice, Result};
use crate::dtype::DType;

/// The floating-point types.
pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Pairs of the data types of a kernel's argument and result.
pub(super) const FLOAT_PAIRS: [[DType; 2]; 8] = [
    [DType::F32, DType::F32],
    [DType::F16, DType::F16],
    [DType::Bf16, DType::Bf16],
    [DType::F32, DType::F16],
    [DType::F32, DType::Bf16],
    [DType::F16, DType::F32],
    [DType::Bf16, DType::F32],
    [DType::Bf16, DType::F16],
];

/// Size of the guard areas before and after each tensor, in bytes. No kernel may change them.
const GUARD: usize = 256;
/// The value of each byte in the guard areas.
const GUARD_BYTE: u8 = 0xa5;
/// The value of each byte of a result before the kernel runs: NaN in all floating-point types.
const UNWRITTEN_BYTE: u8 = 0xff;

/// Allowed absolute error, unless a case sets another: that of `f32` arithmetic on values near 1.
const TOLERANCE: f64 = 1e-5;

/// Maximum number of failures that the tester shows.
const MAX_SHOWN: usize = 40;

/// A tensor that a test case passes to a kernel.
pub(super) struct Argument {
    dtype: DType,
    len: usize,
    /// The elements before the kernel runs; `None` if the kernel must not read them.
    values: Option<Vec<f64>>,
    /// The expected elements after the kernel has run; `None` for scratch memory.
    expected: Option<Vec<f64>>,
    tolerance: f64,
}

impl Argument {
    /// Creates a tensor that the kernel reads and must not change.
    pub(super) fn input(dtype: DType, values: &[f64]) -> Self {
        Self::in_place(dtype, values, values.to_vec()).within(0.0)
    }

    /// Creates a tensor that the kernel reads and writes.
    pub(super) fn in_place(dtype: DType, values: &[f64], expected: Vec<f64>) -> Self {
        Self { values: Some(values.to_vec()), ..Self::output(dtype, expected) }
    }

    /// Creates a tensor that the kernel writes and must not read.
    pub(super) fn output(dtype: DType, expected: Vec<f64>) -> Self {
        Self { dtype, len: expected.len(), values: None, expected: Some(expected), tolerance: TOLERANCE }
    }

    /// Creates scratch memory of the kernel, whose content is not compared.
    pub(super) fn scratch(len: usize) -> Self {
        Self { dtype: DType::F32, len, values: None, expected: None, tolerance: 0.0 }
    }

    /// Sets the allowed absolute error. The rounding error of the data type is allowed in addition.
    pub(super) fn within(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Returns the tensor's size in bytes.
    fn bytes(&self) -> usize {
        self.len * self.dtype.bytes()
    }

    /// Returns the tensor's bytes before the kernel runs.
    fn content(&self) -> Vec<u8> {
        let Some(values) = &self.values else { return vec![UNWRITTEN_BYTE; self.bytes()] };
        let mut content = Vec::with_capacity(self.bytes());
        values.iter().for_each(|&value| encode(self.dtype, value, &mut content));
        content
    }

    /// Compares the tensor's bytes after the kernel has run with the expected elements. Returns a
    /// description of the first difference; `None` if there is no difference.
    fn compare(&self, content: &[u8]) -> Option<String> {
        let expected = self.expected.as_ref()?;
        let actual = content.chunks_exact(self.dtype.bytes()).map(|bytes| decode(self.dtype, bytes));
        let wrong: Vec<_> = (0..).zip(actual.zip(expected)).filter(|(_, (a, b))| !self.is_equal(*a, **b)).collect();
        let (index, (actual, expected)): &(usize, _) = wrong.first()?;
        Some(format!("{} of {} wrong; at {index}: {actual} instead of {expected}", wrong.len(), self.len))
    }

    /// Returns true if `actual` is within the allowed error of `expected`, or if both are NaN.
    fn is_equal(&self, actual: f64, expected: f64) -> bool {
        let rounding = match self.dtype {
            DType::F32 => 1e-6,
            DType::F16 => 1e-3,
            DType::Bf16 => 4e-3,
            DType::I8 | DType::U8 | DType::U32 => 0.0,
        };
        let difference = (actual - expected).abs();
        actual == expected
            || actual.is_nan() && expected.is_nan()
            || difference <= rounding * expected.abs() + self.tolerance + self.smallest()
    }

    /// Returns the data type's smallest normal number, below which rounding errors are absolute.
    fn smallest(&self) -> f64 {
        if self.dtype == DType::F16 { 6e-8 } else { 0.0 }
    }
}

/// Runs test cases on a backend and collects their failures.
pub(super) struct Tester<'a> {
    pub(super) backend: &'static dyn Backend,
    pub(super) kernels: &'static dyn Kernels,
    memory: &'a dyn TestMemory,
    /// Address and size in bytes of the memory for each argument, reused by later cases.
    buffers: RefCell<Vec<(u64, usize)>>,
    failures: RefCell<Vec<String>>,
    cases: Cell<usize>,
}

impl<'a> Tester<'a> {
    pub(super) fn new(backend: &'static dyn Backend, memory: &'a dyn TestMemory) -> Self {
        let (kernels, buffers) = (backend.kernels(), RefCell::default());
        Self { backend, kernels, memory, buffers, failures: RefCell::default(), cases: Cell::new(0) }
    }

    /// Runs a kernel twice on the tensors of a case and compares the results.
    ///
    /// In every third case, the tensors begin one element behind the start of their memory, so that
    /// they are aligned for their data type only.
    pub(super) fn run(&self, case: &str, arguments: &[Argument], kernel: impl Fn(&[RawSlice<'_>]) -> Result) {
        let is_unaligned = self.cases.get() % 3 == 2;
        self.cases.set(self.cases.get() + 1);
        let case = format!("{case}{}", if is_unaligned { " (unaligned)" } else { "" });
        let mut first_results = None;
        for run in 1..=2 {
            match self.run_once(arguments, is_unaligned, &kernel) {
                Ok(results) => {
                    if run == 1 {
                        first_results = Some(results);
                    } else if first_results.as_ref().is_some_and(|first| *first != results) {
                        self.fail(format!("{case}: two runs differ"));
                    }
                }
                Err(reason) => return self.fail(format!("{case}: {reason}")),
            }
        }
    }

    /// Runs a kernel once and returns the bytes of its results, or a description of the failure.
    fn run_once(
        &self,
        arguments: &[Argument],
        is_unaligned: bool,
        kernel: &impl Fn(&[RawSlice<'_>]) -> Result,
    ) -> std::result::Result<Vec<Vec<u8>>, String> {
        let mut slices = Vec::new();
        let mut whole = Vec::new();
        for (index, argument) in arguments.iter().enumerate() {
            let start = GUARD + if is_unaligned { argument.dtype.bytes() } else { 0 };
            let size = start + argument.bytes() + GUARD;
            let address = self.buffer(index, size);
            let mut content = vec![GUARD_BYTE; size];
            content[start..start + argument.bytes()].copy_from_slice(&argument.content());
            let all = slice_at(address, size, DType::U8);
            self.backend.upload(&content, all).map_err(|error| error.to_string())?;
            slices.push(slice_at(address + start as u64, argument.len, argument.dtype));
            whole.push((all, start));
        }
        kernel(&slices).map_err(|error| error.to_string())?;
        let mut results = Vec::new();
        for (index, (argument, (all, start))) in arguments.iter().zip(whole).enumerate() {
            let mut content = vec![0; all.len()];
            self.backend.download(all, &mut content).map_err(|error| error.to_string())?;
            let end = start + argument.bytes();
            let mut guards = content[..start].iter().chain(&content[end..]);
            if !guards.all(|&byte| byte == GUARD_BYTE) {
                return Err(format!("argument {index}: memory beside the tensor was changed"));
            }
            let content = &content[start..end];
            if let Some(failure) = argument.compare(content) {
                return Err(format!("argument {index} ({}): {failure}", argument.dtype));
            }
            if argument.expected.is_some() {
                results.push(content.to_vec());
            }
        }
        Ok(results)
    }

    /// Returns memory of at least `size` bytes for argument `index`.
    fn buffer(&self, index: usize, size: usize) -> u64 {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() <= index {
            buffers.resize(index + 1, (0, 0));
        }
        if buffers[index].1 < size {
            let larger = size.next_power_of_two();
            buffers[index] = (self.memory.allocate(larger), larger);
        }
        buffers[index].0
    }

    /// Adds a failure.
    pub(super) fn fail(&self, failure: String) {
        self.failures.borrow_mut().push(failure);
    }

    /// Returns a tensor that stays allocated, for cases that [`run`](Self::run) cannot describe.
    pub(super) fn tensor(&self, len: usize, dtype: DType) -> RawSlice<'a> {
        slice_at(self.memory.allocate(len * dtype.bytes()), len, dtype)
    }

    /// Panics if a case failed.
    pub(super) fn finish(self) {
        let failures = self.failures.into_inner();
        let shown = &failures[..failures.len().min(MAX_SHOWN)];
        let cases = self.cases.get();
        assert!(failures.is_empty(), "{} of {cases} cases failed:\n{}", failures.len(), shown.join("\n"));
    }
}

/// Returns the slice of `len` elements at `address`.
fn slice_at<'a>(address: u64, len: usize, dtype: DType) -> RawSlice<'a> {
    // SAFETY: `TestMemory` allocated the memory on the backend's device; it stays allocated as long
    // as the tester uses it. Only this thread uses it.
    unsafe { RawSlice::new(address, len, dtype) }
}

/// Returns `len` random numbers from -`limit` to `limit`, rounded to `dtype`. Numbers of integer
/// types are at least 0 and less than `limit`. Equal arguments give equal numbers.
pub(super) fn random(dtype: DType, len: usize, limit: f64) -> Vec<f64> {
    let mut rng = fastrand::Rng::with_seed(len as u64 * 31 + dtype as u64);
    let mut number = || if dtype.is_float() { limit * (2.0 * rng.f64() - 1.0) } else { (limit * rng.f64()).floor() };
    (0..len).map(|_| rounded(dtype, number())).collect()
}

/// Rounds a number to a data type.
pub(super) fn rounded(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::Bf16 => bf16::from_f64(value).to_f64(),
        DType::I8 | DType::U8 | DType::U32 => value,
    }
}

/// Rounds numbers to a data type.
pub(super) fn all_rounded(dtype: DType, values: &[f64]) -> Vec<f64> {
    values.iter().map(|&value| rounded(dtype, value)).collect()
}

/// Appends the bytes of a number, converted to a data type.
pub(super) fn encode(dtype: DType, value: f64, bytes: &mut Vec<u8>) {
    match dtype {
        DType::F32 => bytes.extend((value as f32).to_ne_bytes()),
        DType::F16 => bytes.extend(f16::from_f64(value).to_ne_bytes()),
        DType::Bf16 => bytes.extend(bf16::from_f64(value).to_ne_bytes()),
        DType::I8 => bytes.extend((value as i8).to_ne_bytes()),
        DType::U8 => bytes.extend((value as u8).to_ne_bytes()),
        DType::U32 => bytes.extend((value as u32).to_ne_bytes()),
    }
}

/// Returns the number that `bytes` represent in a data type.
fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    let four = || bytes.try_into().expect("the number has four bytes");
    let two = || bytes.try_into().expect("the number has two bytes");
    match dtype {
        DType::F32 => f64::from(f32::from_ne_bytes(four())),
        DType::F16 => f16::from_ne_bytes(two()).to_f64(),
        DType::Bf16 => bf16::from_ne_bytes(two()).to_f64(),
        DType::I8 => f64::from(bytes[0].cast_signed()),
        DType::U8 => f64::from(bytes[0]),
        DType::U32 => f64::from(u32::from_ne_bytes(four())),
    }
}
