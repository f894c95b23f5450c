//! Runs one case: allocates its tensors, runs the kernel and compares the results.

use std::cell::{Cell, RefCell};

use half::{bf16, f16};

use super::TestMemory;
use crate::backend::{Backend, Kernels, RawSlice, Result};
use crate::dtype::DType;

/// The floating-point types.
pub(super) const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Types of an argument and a result.
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

/// Bytes before and after each tensor that no kernel may change.
const GUARD: usize = 256;
/// What these bytes contain.
const GUARD_BYTE: u8 = 0xa5;
/// What results contain before the kernel runs: NaN in all floating-point types.
const UNWRITTEN_BYTE: u8 = 0xff;

/// Absolute error of `f32` arithmetic on numbers around 1, unless a case states another.
const TOLERANCE: f64 = 1e-5;

/// Most failures that are shown.
const MAX_SHOWN: usize = 40;

/// A tensor of a case.
pub(super) struct Argument {
    dtype: DType,
    len: usize,
    /// The numbers before; `None` if the kernel may not read them.
    values: Option<Vec<f64>>,
    /// The numbers after; `None` for scratch memory.
    expected: Option<Vec<f64>>,
    tolerance: f64,
}

impl Argument {
    /// A tensor that the kernel reads.
    pub(super) fn input(dtype: DType, values: &[f64]) -> Self {
        Self::in_place(dtype, values, values.to_vec()).within(0.0)
    }

    /// A tensor that the kernel reads and writes.
    pub(super) fn in_place(dtype: DType, values: &[f64], expected: Vec<f64>) -> Self {
        Self { values: Some(values.to_vec()), ..Self::output(dtype, expected) }
    }

    /// A tensor that the kernel writes.
    pub(super) fn output(dtype: DType, expected: Vec<f64>) -> Self {
        Self { dtype, len: expected.len(), values: None, expected: Some(expected), tolerance: TOLERANCE }
    }

    /// A tensor that the kernel uses as it likes.
    pub(super) fn scratch(len: usize) -> Self {
        Self { dtype: DType::F32, len, values: None, expected: None, tolerance: 0.0 }
    }

    /// Sets the absolute error that is allowed beside the rounding to the type.
    pub(super) fn within(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    fn bytes(&self) -> usize {
        self.len * self.dtype.bytes()
    }

    /// Returns the content before the kernel runs.
    fn content(&self) -> Vec<u8> {
        let Some(values) = &self.values else { return vec![UNWRITTEN_BYTE; self.bytes()] };
        let mut content = Vec::with_capacity(self.bytes());
        values.iter().for_each(|&value| encode(self.dtype, value, &mut content));
        content
    }

    /// Compares the content after the kernel ran.
    fn compare(&self, content: &[u8]) -> Option<String> {
        let expected = self.expected.as_ref()?;
        let actual = content.chunks_exact(self.dtype.bytes()).map(|bytes| decode(self.dtype, bytes));
        let wrong: Vec<_> = (0..).zip(actual.zip(expected)).filter(|(_, (a, b))| !self.is_equal(*a, **b)).collect();
        let (index, (actual, expected)): &(usize, _) = wrong.first()?;
        Some(format!("{} of {} wrong; at {index}: {actual} instead of {expected}", wrong.len(), self.len))
    }

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

    /// Returns the smallest number of the type, below which rounding is absolute.
    fn smallest(&self) -> f64 {
        if self.dtype == DType::F16 { 6e-8 } else { 0.0 }
    }
}

/// Runs cases on a backend and keeps their failures.
pub(super) struct Tester<'a> {
    pub(super) backend: &'static dyn Backend,
    pub(super) kernels: &'static dyn Kernels,
    memory: &'a dyn TestMemory,
    /// Address and size of the memory for each argument, used again by later cases.
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
    /// In every third case, the tensors begin at their second number: aligned for the type only.
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

    /// Returns the content of the results.
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
            let all = raw(address, size, DType::U8);
            self.backend.upload(&content, all).map_err(|error| error.to_string())?;
            slices.push(raw(address + start as u64, argument.len, argument.dtype));
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

    /// Records a failure.
    pub(super) fn fail(&self, failure: String) {
        self.failures.borrow_mut().push(failure);
    }

    /// Returns a tensor that stays allocated, for cases that [`run`](Self::run) cannot describe.
    pub(super) fn tensor(&self, len: usize, dtype: DType) -> RawSlice<'a> {
        raw(self.memory.allocate(len * dtype.bytes()), len, dtype)
    }

    /// Panics if a case failed.
    pub(super) fn finish(self) {
        let failures = self.failures.into_inner();
        let shown = &failures[..failures.len().min(MAX_SHOWN)];
        let cases = self.cases.get();
        assert!(failures.is_empty(), "{} of {cases} cases failed:\n{}", failures.len(), shown.join("\n"));
    }
}

/// Describes memory of a test.
fn raw<'a>(address: u64, len: usize, dtype: DType) -> RawSlice<'a> {
    // SAFETY: `TestMemory` allocated the memory on the backend's device; it stays allocated as long
    // as the tester uses it. Only this thread uses it.
    unsafe { RawSlice::new(address, len, dtype) }
}

/// Returns `len` random numbers from -`limit` to `limit`, rounded to a type, equal for equal
/// arguments. Numbers of integer types are from 0 to `limit`, without `limit`.
pub(super) fn random(dtype: DType, len: usize, limit: f64) -> Vec<f64> {
    let mut rng = fastrand::Rng::with_seed(len as u64 * 31 + dtype as u64);
    let mut number = || if dtype.is_float() { limit * (2.0 * rng.f64() - 1.0) } else { (limit * rng.f64()).floor() };
    (0..len).map(|_| rounded(dtype, number())).collect()
}

/// Rounds a number to a type.
pub(super) fn rounded(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::Bf16 => bf16::from_f64(value).to_f64(),
        DType::I8 | DType::U8 | DType::U32 => value,
    }
}

/// Rounds numbers to a type.
pub(super) fn all_rounded(dtype: DType, values: &[f64]) -> Vec<f64> {
    values.iter().map(|&value| rounded(dtype, value)).collect()
}

/// Appends the bytes of a number.
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
