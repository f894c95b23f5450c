//! References to tensors' memory. Only this module turns addresses into references.

use half::{bf16, f16};

use super::super::RawSlice;
use crate::dtype::DType;

/// The elements of a float tensor, to read.
#[derive(Clone, Copy)]
pub(super) enum Floats<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

/// The elements of a float tensor, to read and write.
pub(super) enum FloatsMut<'a> {
    F32(&'a mut [f32]),
    F16(&'a mut [f16]),
    Bf16(&'a mut [bf16]),
}

/// An element type of tensors. Every bit pattern is a valid value.
pub(super) trait Number: Copy + Send + Sync + 'static {
    /// Returns true if the elements of `dtype` tensors can be accessed as values of this type.
    fn represents(dtype: DType) -> bool;
}

macro_rules! numbers {
    ($($number:ty: $pattern:pat),* $(,)?) => {
        $(impl Number for $number {
            fn represents(dtype: DType) -> bool {
                matches!(dtype, $pattern)
            }
        })*
    };
}

// The unsigned integers also give access to the bits of the other numbers of their size.
numbers! {
    f32: DType::F32,
    f16: DType::F16,
    bf16: DType::Bf16,
    i8: DType::I8,
    u8: _,
    u16: DType::F16 | DType::Bf16,
    u32: DType::U32 | DType::F32,
}

/// Returns the elements of a tensor, to read.
///
/// # Panics
/// If the tensor has numbers of another type.
pub(super) fn numbers<'a, T: Number>(slice: RawSlice<'a>) -> &'a [T] {
    let len = checked_len::<T>(slice);
    if len == 0 {
        return &[];
    }
    // SAFETY: The creator of `slice` guarantees that the memory is live, aligned for the type
    // (every type that represents it needs at most that alignment) and accessed by this thread
    // only. It holds `len` numbers of type `T`, for which every pattern of bits is valid. The
    // functions of this backend check by `assert_disjoint` that no slice to write overlaps it.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(address(slice)), len) }
}

/// Returns the elements of a tensor, to read and write. `inputs` are the kernel's other tensors.
///
/// # Panics
/// If the tensor has numbers of another type, or overlaps one of `inputs`.
pub(super) fn numbers_mut<'a, T: Number>(slice: RawSlice<'a>, inputs: &[RawSlice<'_>]) -> &'a mut [T] {
    for input in inputs {
        assert_disjoint(slice, *input);
    }
    let len = checked_len::<T>(slice);
    if len == 0 {
        return &mut [];
    }
    // SAFETY: As in `numbers`; and no other slice of the call overlaps this one, as just checked.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address(slice)), len) }
}

/// Returns the bytes of a tensor, to read.
pub(super) fn bytes<'a>(slice: RawSlice<'a>) -> &'a [u8] {
    numbers(slice)
}

/// Returns the bytes of a tensor, to read and write. `inputs` are the kernel's other tensors.
///
/// # Panics
/// If the tensor overlaps one of `inputs`.
pub(super) fn bytes_mut<'a>(slice: RawSlice<'a>, inputs: &[RawSlice<'_>]) -> &'a mut [u8] {
    numbers_mut(slice, inputs)
}

/// Returns the elements of a float tensor, to read.
///
/// # Panics
/// If the numbers are integers.
pub(super) fn floats(slice: RawSlice<'_>) -> Floats<'_> {
    match slice.dtype() {
        DType::F32 => Floats::F32(numbers(slice)),
        DType::F16 => Floats::F16(numbers(slice)),
        DType::Bf16 => Floats::Bf16(numbers(slice)),
        other => panic!("the tensor has floating-point numbers, not {other}"),
    }
}

/// Returns the elements of a float tensor, to read and write. `inputs` are the kernel's other
/// tensors.
///
/// # Panics
/// If the numbers are integers, or the tensor overlaps one of `inputs`.
pub(super) fn floats_mut<'a>(slice: RawSlice<'a>, inputs: &[RawSlice<'_>]) -> FloatsMut<'a> {
    match slice.dtype() {
        DType::F32 => FloatsMut::F32(numbers_mut(slice, inputs)),
        DType::F16 => FloatsMut::F16(numbers_mut(slice, inputs)),
        DType::Bf16 => FloatsMut::Bf16(numbers_mut(slice, inputs)),
        other => panic!("the tensor has floating-point numbers, not {other}"),
    }
}

/// Returns the elements of a matrix divided by `columns`: its number of rows, or its number of
/// columns if the caller passes the number of rows. Returns 0 for a matrix without elements.
///
/// # Panics
/// If `columns` does not divide the number of elements.
pub(super) fn count_rows(matrix: RawSlice<'_>, columns: usize) -> usize {
    let rows = matrix.len().checked_div(columns).unwrap_or(0);
    assert_eq!(rows * columns, matrix.len(), "the matrix has whole rows");
    rows
}

/// Returns the inputs and the result of a kernel that may work in place. An input is `None` if its
/// memory is the result's; the kernel then reads it through the result. `others` are the kernel's
/// other tensors.
///
/// # Panics
/// If an input overlaps the result only in part, or if one of `others` overlaps the result.
pub(super) fn maybe_in_place<'a, const INPUTS: usize>(
    inputs: [RawSlice<'a>; INPUTS],
    result: RawSlice<'a>,
    others: &[RawSlice<'_>],
) -> ([Option<Floats<'a>>; INPUTS], FloatsMut<'a>) {
    let is_result = |input: RawSlice<'_>| input.address() == result.address() && input.len() > 0;
    let inputs = inputs.map(|input| {
        if is_result(input) {
            let equal = input.len() == result.len() && input.dtype() == result.dtype();
            assert!(equal, "a result in place has the length and type of its argument");
            None
        } else {
            assert_disjoint(input, result);
            Some(floats(input))
        }
    });
    (inputs, floats_mut(result, others))
}

/// Asserts that two tensors share no memory.
fn assert_disjoint(one: RawSlice<'_>, other: RawSlice<'_>) {
    let end = |slice: RawSlice<'_>| slice.address() + slice.bytes() as u64;
    let is_disjoint =
        one.bytes() == 0 || other.bytes() == 0 || end(one) <= other.address() || end(other) <= one.address();
    assert!(is_disjoint, "the tensors of a call do not overlap");
}

/// Returns the address of a tensor's first element.
fn address(slice: RawSlice<'_>) -> usize {
    usize::try_from(slice.address()).expect("the memory belongs to this process")
}

/// Returns the length of a tensor in elements. Panics if they cannot be accessed as `T`.
fn checked_len<T: Number>(slice: RawSlice<'_>) -> usize {
    assert!(T::represents(slice.dtype()), "the kernel expects another type than {}", slice.dtype());
    slice.bytes() / size_of::<T>()
}
