//! Prints the rates of the kernels at the sizes of a GPT with 8 layers, width 512, batch 8 and
//! length 512.

use std::time::Instant;

use super::gpu::{DriverMemory, context};
use crate::backend::cuda::CudaBackend;
use crate::backend::{
    AdamStep, Backend, Binary, Gemm, Norm, NormBackward, QuantizedMoments, RawSlice, Result, Softmax, StridedCopy,
    Unary, partial_rows,
};
use crate::dtype::DType;

/// Number of tokens in a batch.
const TOKENS: usize = 8 * 512;
/// Width of the GPT's residual stream.
const WIDTH: usize = 512;
/// Number of different tokens.
const VOCABULARY: usize = 8192;
/// Number of attention heads.
const HEADS: usize = 8;
/// Number of tokens in a sequence.
const LENGTH: usize = 512;
/// Number of timed runs of each kernel.
const RUNS: u32 = 30;

/// Returns the mean time of one run, in seconds.
fn seconds(backend: &CudaBackend, run: impl Fn() -> Result) -> f64 {
    run().unwrap();
    backend.synchronize().unwrap();
    let start = Instant::now();
    for _ in 0..RUNS {
        run().unwrap();
    }
    backend.synchronize().unwrap();
    start.elapsed().as_secs_f64() / f64::from(RUNS)
}

/// Returns the total size of the slices in bytes.
fn bytes(slices: &[RawSlice<'_>]) -> f64 {
    slices.iter().map(|slice| slice.bytes()).sum::<usize>() as f64
}

/// Prints a kernel's memory rate: the bytes of `moved` divided by the time of a run.
fn rate(backend: &CudaBackend, name: &str, dtype: DType, moved: &[RawSlice<'_>], run: impl Fn() -> Result) {
    let time = seconds(backend, run);
    println!("{name:26} {dtype:5} {:9.1} µs {:9.0} GB/s", 1e6 * time, bytes(moved) / time / 1e9);
}

#[test]
fn kernel_speeds() {
    let Some(context) = context() else { return };
    let start = Instant::now();
    let backend = CudaBackend::new(&context).unwrap();
    println!("backend created in {:.2} s", start.elapsed().as_secs_f64());
    for dtype in [DType::F32, DType::Bf16] {
        let memory = DriverMemory::new(&context);
        elementwise(&backend, &memory, dtype);
        rows(&backend, &memory, dtype);
        tables(&backend, &memory, dtype);
        products(&backend, &memory, dtype, false);
    }
    let memory = DriverMemory::new(&context);
    products(&backend, &memory, DType::F32, true);
    optimizers(&backend, &memory);
    launches(&backend, &memory);
}

/// Allocates a tensor and fills it with a constant.
fn filled<'a>(backend: &CudaBackend, memory: &'a DriverMemory, len: usize, dtype: DType) -> RawSlice<'a> {
    let slice = memory.slice(len, dtype);
    backend.fill(slice, 0.5).unwrap();
    slice
}

fn elementwise(b: &CudaBackend, memory: &DriverMemory, dtype: DType) {
    let new = |len, dtype| filled(b, memory, len, dtype);
    let wide = 4 * WIDTH;
    let [x, y, z] = [(); 3].map(|()| new(TOKENS * wide, dtype));
    rate(b, "gelu 4096x2048", dtype, &[x, y], || b.kernels().unary(Unary::Gelu, x, y));
    rate(b, "gelu_backward", dtype, &[x, y, z], || b.kernels().binary(Binary::GeluBackward, x, y, z));
    rate(b, "combine", dtype, &[x, y, z], || b.kernels().combine(1.0, x, Some((1.0, y)), z));
    let bias = new(wide, dtype);
    rate(b, "add_bias", dtype, &[x, bias, y], || b.kernels().add_bias(x, bias, y));
    let bias = new(wide, DType::F32);
    rate(b, "add_bias of f32", dtype, &[x, bias, y], || b.kernels().add_bias(x, bias, y));
    let other = new(TOKENS * wide, if dtype == DType::F32 { DType::Bf16 } else { DType::F32 });
    rate(b, "copy to other type", dtype, &[x, other], || b.kernels().unary(Unary::Copy, x, other));
    rate(b, "copy", dtype, &[x, y], || b.copy(x, y));
    let (sums, partials) = (new(wide, dtype), new(partial_rows(TOKENS) * wide, DType::F32));
    rate(b, "column_sums 4096x2048", dtype, &[x], || b.kernels().column_sums(x, partials, sums));
    let (total, partials) = (new(1, dtype), new(x.len().div_ceil(4096), DType::F32));
    rate(b, "sum of 8 M", dtype, &[x], || b.kernels().sum(x, partials, total, 1.0));
    let heads = new(TOKENS * WIDTH, dtype);
    let copy = StridedCopy {
        dims: [8, HEADS, LENGTH, WIDTH / HEADS],
        from_offset: 512,
        from_strides: [LENGTH * 3 * WIDTH, WIDTH / HEADS, 3 * WIDTH, 1],
        to_offset: 0,
        to_strides: [LENGTH * WIDTH, LENGTH * WIDTH / HEADS, WIDTH / HEADS, 1],
    };
    rate(b, "split heads 4096x512", dtype, &[heads, heads], || b.kernels().copy_strided(x, heads, &copy));
}

fn rows(b: &CudaBackend, memory: &DriverMemory, dtype: DType) {
    let new = |len, dtype| filled(b, memory, len, dtype);
    let rows = 8 * HEADS * LENGTH;
    let [x, y, z] = [(); 3].map(|()| new(rows * LENGTH, dtype));
    let shape = Softmax { rows, columns: LENGTH, scale: 0.125, queries: LENGTH, first: 0 };
    rate(b, "softmax 32768x512", dtype, &[x, y], || b.kernels().softmax(x, y, &shape));
    rate(b, "softmax_backward", dtype, &[x, y, z], || b.kernels().softmax_backward(x, y, z, &shape));
    let [x, y, z] = [(); 3].map(|()| new(TOKENS * WIDTH, dtype));
    let [weight, bias, d_weight, d_bias] = [(); 4].map(|()| new(WIDTH, DType::F32));
    let statistics = new(2 * TOKENS, DType::F32);
    let partials = new(2 * partial_rows(TOKENS) * WIDTH, DType::F32);
    let norm = Norm { x, weight, bias, y, statistics };
    rate(b, "layer_norm 4096x512", dtype, &[x, y], || b.kernels().layer_norm(&norm, 1e-5));
    let norm = NormBackward { x, dy: y, weight, statistics, dx: z, d_weight, d_bias };
    rate(b, "layer_norm_backward", dtype, &[x, y, z], || b.kernels().layer_norm_backward(&norm, partials));
    let [logits, d_logits] = [(); 2].map(|()| new(TOKENS * VOCABULARY, dtype));
    let [log_sums, losses] = [(); 2].map(|()| new(TOKENS, DType::F32));
    let (targets, d_loss) = (indices(b, memory), new(1, DType::F32));
    rate(b, "cross_entropy 4096x8192", dtype, &[logits], || {
        b.kernels().cross_entropy(logits, targets, log_sums, losses)
    });
    rate(b, "cross_entropy_backward", dtype, &[logits, d_logits], || {
        b.kernels().cross_entropy_backward([logits, targets, log_sums], d_loss, 1.0, d_logits)
    });
}

/// Returns a vocabulary index for each token. A tenth of the tokens share one index.
fn indices<'a>(b: &CudaBackend, memory: &'a DriverMemory) -> RawSlice<'a> {
    let mut rng = fastrand::Rng::with_seed(1);
    let index = |n: usize| if n.is_multiple_of(10) { 7 } else { rng.u32(..VOCABULARY as u32) };
    let indices: Vec<u8> = (0..TOKENS).map(index).flat_map(u32::to_ne_bytes).collect();
    let slice = memory.slice(TOKENS, DType::U32);
    b.upload(&indices, slice).unwrap();
    slice
}

fn tables(b: &CudaBackend, memory: &DriverMemory, dtype: DType) {
    let new = |len, dtype| filled(b, memory, len, dtype);
    let (indices, rows) = (indices(b, memory), new(TOKENS * WIDTH, dtype));
    for vocabulary in [VOCABULARY, 50257] {
        let table = new(vocabulary * WIDTH, DType::F32);
        rate(b, "gather_rows", dtype, &[rows, rows], || b.kernels().gather_rows(table, indices, rows));
        let name = if vocabulary == VOCABULARY { "scatter_add_rows to 8192" } else { "scatter_add_rows to 50257" };
        rate(b, name, dtype, &[rows, table], || b.kernels().scatter_add_rows(rows, indices, table));
    }
}

fn products(b: &CudaBackend, memory: &DriverMemory, dtype: DType, allow_tf32: bool) {
    b.allow_tf32(allow_tf32).unwrap();
    let kind = if allow_tf32 { "tf32".to_owned() } else { dtype.to_string() };
    let new = |len| filled(b, memory, len, dtype);
    let heads = 8 * HEADS;
    let shapes = [
        ("4096x512 by 512x2048", [TOKENS, WIDTH, 4 * WIDTH], 1, [false, false]),
        ("weights 512x4096x2048", [WIDTH, TOKENS, 4 * WIDTH], 1, [true, false]),
        ("4096x512 by 8192x512", [TOKENS, WIDTH, VOCABULARY], 1, [false, true]),
        ("64 of 512x64 by 64x512", [LENGTH, WIDTH / HEADS, LENGTH], heads, [false, true]),
        ("64 of 512x512 by 512x64", [LENGTH, LENGTH, WIDTH / HEADS], heads, [false, false]),
    ];
    for (name, [rows, inner, columns], batch, [transpose_a, transpose_b]) in shapes {
        let strides = [rows * inner, inner * columns, rows * columns];
        let [a, x, c] = strides.map(|count| new(batch * count));
        let gemm = Gemm { rows, inner, columns, transpose_a, transpose_b, batch, strides };
        let time = seconds(b, || b.gemm(a, x, c, &gemm));
        let operations = 2.0 * (batch * rows * inner * columns) as f64;
        println!("{name:26} {kind:5} {:9.1} µs {:9.1} TFLOP/s", 1e6 * time, operations / time / 1e12);
    }
    b.allow_tf32(false).unwrap();
}

fn optimizers(b: &CudaBackend, memory: &DriverMemory) {
    let count = 32 << 20;
    let [parameter, gradient, mean, variance] = [(); 4].map(|()| filled(b, memory, count, DType::F32));
    let step = AdamStep { rate: 1e-4, decay: 1e-6, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, root_scale: 1.0 };
    let moved = [parameter, gradient, mean, variance, parameter, mean, variance];
    rate(b, "adam of 32 M", DType::F32, &moved, || b.kernels().adam(parameter, gradient, [mean, variance], &step));
    let moments = QuantizedMoments {
        mean: memory.slice(count, DType::I8),
        mean_scales: filled(b, memory, count / 256, DType::F32),
        variance: memory.slice(count, DType::U8),
        variance_scales: filled(b, memory, count / 256, DType::F32),
    };
    let codes = [moments.mean, moments.variance, moments.mean, moments.variance];
    let moved = [&[parameter, gradient, parameter], &codes[..]].concat();
    rate(b, "adam_8bit of 32 M", DType::F32, &moved, || b.kernels().adam_8bit(parameter, gradient, moments, &step));
    let found = memory.slice(1, DType::U32);
    rate(b, "unscale of 32 M", DType::F32, &[gradient, gradient], || b.kernels().unscale(gradient, 1.0, found));
}

/// Prints the CPU time of one launch.
fn launches(b: &CudaBackend, memory: &DriverMemory) {
    let x = filled(b, memory, 256, DType::F32);
    let time = seconds(b, || (0..100).try_for_each(|_| b.kernels().unary(Unary::Relu, x, x)));
    println!("{:26} {:5} {:9.2} µs", "launch", "", 1e4 * time);
}
