//! A net of eight residual blocks that learns a fixed batch. Every tensor is in the pool: the
//! allocations of a transformer's training step, without attention.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::cublas::sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
use cudarc::cublas::{self, CudaBlas, Gemm, GemmConfig};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc;
use vramscope_collector::{Category, CudaDevice, CudaPool, PoolSlice, PoolStream};

/// Rows of the batch: two sequences of 128 tokens.
const ROWS: usize = 256;
/// Width of the residual stream.
const WIDTH: usize = 512;
/// Width of a block's hidden layer.
const WIDE: usize = 4 * WIDTH;
const BLOCKS: usize = 8;
/// The optimizer's learning rate.
const RATE: f32 = 1e-3;

type Tensor = PoolSlice<f32, CudaDevice>;

/// Returns true if cuBLAS and NVRTC are installed.
pub(crate) fn has_libraries() -> bool {
    // SAFETY: Loading the libraries runs their initializers, which are meant to run in any program.
    unsafe { cublas::sys::is_culib_present() && nvrtc::sys::is_culib_present() }
}

/// A parameter with its optimizer state and gradient.
struct Parameter {
    value: Tensor,
    mean: Tensor,
    square: Tensor,
    gradient: Option<Tensor>,
}

/// A residual block: x + W2 gelu(W1 x + b1) + b2.
struct Block {
    weights: [Parameter; 2],
    biases: [Parameter; 2],
}

/// Activations of a block that its backward pass needs.
struct Saved {
    x: Tensor,
    wide: Tensor,
    active: Tensor,
}

struct Kernels(Arc<cudarc::driver::CudaModule>);

impl Kernels {
    fn load(&self, name: &str) -> CudaFunction {
        self.0.load_function(name).expect("the module has the kernel")
    }
}

/// Runs operations on the GPU. Every result is allocated from the pool.
struct Operations {
    stream: Arc<CudaStream>,
    pool: PoolStream<CudaDevice>,
    blas: CudaBlas,
    kernels: std::collections::HashMap<&'static str, CudaFunction>,
    /// Time to spin before each operation.
    spin: Duration,
    /// Operations of the current step.
    count: usize,
}

const KERNELS: [&str; 9] =
    ["add_bias", "gelu", "gelu_backward", "sum", "square", "quotient", "decay", "descend", "column_sums"];

/// Launches a kernel over `count` threads.
macro_rules! launch {
    ($ops:expr, $name:literal, $count:expr, $($argument:expr),+) => {{
        $ops.dispatch();
        let config = LaunchConfig::for_num_elems($count as u32);
        let mut launch = $ops.stream.launch_builder(&$ops.kernels[$name]);
        // SAFETY: The arguments match the kernel's parameters, and its threads stay within the
        // counts given.
        unsafe { launch$(.arg($argument))+.launch(config) }.expect("the kernel is launched");
    }};
}

impl Operations {
    fn new(context: &Arc<CudaContext>, pool: &CudaPool) -> Self {
        let ptx = nvrtc::compile_ptx(include_str!("kernels.cu")).expect("the kernels compile");
        let kernels = Kernels(context.load_module(ptx).expect("the module can be loaded"));
        let stream = context.default_stream();
        let blas = CudaBlas::new(Arc::clone(&stream)).expect("cuBLAS is installed");
        Self {
            pool: pool.on(&stream),
            blas,
            kernels: KERNELS.into_iter().map(|name| (name, kernels.load(name))).collect(),
            stream,
            spin: Duration::ZERO,
            count: 0,
        }
    }

    fn dispatch(&mut self) {
        self.count += 1;
        if !self.spin.is_zero() {
            let start = Instant::now();
            while start.elapsed() < self.spin {
                std::hint::spin_loop();
            }
        }
    }

    #[track_caller]
    fn tensor(&self, count: usize) -> Tensor {
        // SAFETY: Every operation writes its whole result before anything reads it.
        unsafe { self.pool.alloc::<f32>(count) }.expect("the GPU has enough memory")
    }

    /// Multiplies two row-major matrices, `rows` by `inner` and `inner` by `columns`, each
    /// transposed first where `transposed` is true.
    #[track_caller]
    fn product(&mut self, a: &Tensor, b: &Tensor, [rows, inner, columns]: [usize; 3], transposed: [bool; 2]) -> Tensor {
        let mut out = self.tensor(rows * columns);
        self.dispatch();
        // cuBLAS uses column-major matrices, so it computes the transposed product bᵀ aᵀ.
        let operation = |is_transposed| if is_transposed { CUBLAS_OP_T } else { CUBLAS_OP_N };
        let config = GemmConfig {
            transa: operation(transposed[1]),
            transb: operation(transposed[0]),
            m: columns as i32,
            n: rows as i32,
            k: inner as i32,
            alpha: 1.0,
            lda: if transposed[1] { inner } else { columns } as i32,
            ldb: if transposed[0] { rows } else { inner } as i32,
            beta: 0.0,
            ldc: columns as i32,
        };
        // SAFETY: The three matrices have the sizes in `config`.
        unsafe { self.blas.gemm(config, b, a, &mut out) }.expect("cuBLAS multiplies");
        out
    }

    #[track_caller]
    fn add_bias(&mut self, x: &Tensor, bias: &Tensor) -> Tensor {
        let (mut y, count, width) = (self.tensor(x.len()), x.len() as i32, bias.len() as i32);
        launch!(self, "add_bias", count, x, bias, &mut y, &count, &width);
        y
    }

    #[track_caller]
    fn gelu(&mut self, x: &Tensor) -> Tensor {
        let (mut y, count) = (self.tensor(x.len()), x.len() as i32);
        launch!(self, "gelu", count, x, &mut y, &count);
        y
    }

    #[track_caller]
    fn gelu_backward(&mut self, x: &Tensor, dy: &Tensor) -> Tensor {
        let (mut dx, count) = (self.tensor(x.len()), x.len() as i32);
        launch!(self, "gelu_backward", count, x, dy, &mut dx, &count);
        dx
    }

    /// Returns a x + b y.
    #[track_caller]
    fn sum(&mut self, [a, b]: [f32; 2], x: &Tensor, y: &Tensor) -> Tensor {
        let (mut z, count) = (self.tensor(x.len()), x.len() as i32);
        launch!(self, "sum", count, x, y, &mut z, &a, &b, &count);
        z
    }

    #[track_caller]
    fn column_sums(&mut self, x: &Tensor, width: usize) -> Tensor {
        let (mut sums, rows, width) = (self.tensor(width), (x.len() / width) as i32, width as i32);
        launch!(self, "column_sums", width, x, &mut sums, &rows, &width);
        sums
    }

    /// Applies a step of Adam, without bias correction.
    fn descend(&mut self, parameter: &mut Parameter) {
        let Some(gradient) = parameter.gradient.take() else { return };
        let count = gradient.len() as i32;
        let (keep_mean, keep_square) = (0.9f32, 0.99f32);
        let mut square = self.tensor(gradient.len());
        launch!(self, "square", count, &gradient, &mut square, &count);
        launch!(self, "decay", count, &mut parameter.mean, &gradient, &keep_mean, &count);
        launch!(self, "decay", count, &mut parameter.square, &square, &keep_square, &count);
        drop(square);
        let mut update = self.tensor(gradient.len());
        launch!(self, "quotient", count, &parameter.mean, &parameter.square, &mut update, &count);
        launch!(self, "descend", count, &mut parameter.value, &update, &RATE, &count);
    }
}

/// A net with its batch and optimizer state.
pub(crate) struct Net {
    ops: Operations,
    blocks: Vec<Block>,
    input: Tensor,
    target: Tensor,
    /// Operations of the last step.
    operations: usize,
}

impl Net {
    pub(crate) fn new(context: &Arc<CudaContext>, pool: &CudaPool) -> Self {
        let ops = Operations::new(context, pool);
        let mut rng = fastrand::Rng::with_seed(1);
        let mut random = |count: usize, scale: f32| {
            let _parameter = pool.category(Category::Parameter);
            let values: Vec<f32> = (0..count).map(|_| (rng.f32() - 0.5) * scale).collect();
            ops.pool.clone_htod(&values).expect("the GPU has enough memory")
        };
        let mut parameter = |count: usize, scale: f32| {
            let _state = pool.category(Category::OptimizerState);
            let zeros = || ops.pool.alloc_zeros::<f32>(count).expect("the GPU has enough memory");
            Parameter { value: random(count, scale), mean: zeros(), square: zeros(), gradient: None }
        };
        let mut block = || Block {
            weights: [parameter(WIDTH * WIDE, 0.05), parameter(WIDE * WIDTH, 0.02)],
            biases: [parameter(WIDE, 0.0), parameter(WIDTH, 0.0)],
        };
        let blocks = (0..BLOCKS).map(|_| block()).collect();
        let (input, target) = (random(ROWS * WIDTH, 2.0), random(ROWS * WIDTH, 2.0));
        Self { ops, blocks, input, target, operations: 0 }
    }

    /// Trains one step and waits for the GPU. The processor spins for `spin` before each operation.
    pub(crate) fn step(&mut self, spin: Duration) {
        self.ops.spin = spin;
        self.ops.count = 0;
        let pool = self.ops.pool.pool().clone();
        let _step = pool.scope("step");
        let (output, saved) = self.forward(&pool);
        let difference = {
            let _loss = pool.scope("loss");
            self.ops.sum([1.0, -1.0], &output, &self.target)
        };
        drop(output);
        self.backward(&pool, &difference, saved);
        {
            let _optimizer = pool.scope_with("optimizer", Category::Temporary);
            let Self { ops, blocks, .. } = self;
            let parameters = blocks.iter_mut().flat_map(|block| block.weights.iter_mut().chain(&mut block.biases));
            parameters.for_each(|parameter| ops.descend(parameter));
        }
        self.operations = self.ops.count;
        self.ops.stream.synchronize().expect("the GPU completes its work");
        drop(difference);
    }

    fn forward(&mut self, pool: &CudaPool) -> (Tensor, Vec<Saved>) {
        let _forward = pool.scope_with("forward", Category::Activation);
        let Self { ops, blocks, input, .. } = self;
        let mut x = ops.sum([1.0, 0.0], input, input);
        let mut saved = Vec::with_capacity(BLOCKS);
        for (n, block) in blocks.iter().enumerate() {
            let _block = pool.scope(NAMES[n]);
            let product = ops.product(&x, &block.weights[0].value, [ROWS, WIDTH, WIDE], [false; 2]);
            let wide = ops.add_bias(&product, &block.biases[0].value);
            drop(product);
            let active = ops.gelu(&wide);
            let product = ops.product(&active, &block.weights[1].value, [ROWS, WIDE, WIDTH], [false; 2]);
            let added = ops.add_bias(&product, &block.biases[1].value);
            drop(product);
            let next = ops.sum([1.0, 1.0], &x, &added);
            saved.push(Saved { x: std::mem::replace(&mut x, next), wide, active });
        }
        (x, saved)
    }

    fn backward(&mut self, pool: &CudaPool, difference: &Tensor, mut saved: Vec<Saved>) {
        let _backward = pool.scope_with("backward", Category::Gradient);
        let Self { ops, blocks, .. } = self;
        // The gradient of the mean of squares.
        let scale = 2.0 / (ROWS * WIDTH) as f32;
        let mut dy = ops.sum([scale, 0.0], difference, difference);
        for (n, block) in blocks.iter_mut().enumerate().rev() {
            let _block = pool.scope(NAMES[n]);
            let Some(Saved { x, wide, active }) = saved.pop() else { return };
            block.weights[1].gradient = Some(ops.product(&active, &dy, [WIDE, ROWS, WIDTH], [true, false]));
            block.biases[1].gradient = Some(ops.column_sums(&dy, WIDTH));
            drop(active);
            let d_active = ops.product(&dy, &block.weights[1].value, [ROWS, WIDTH, WIDE], [false, true]);
            let d_wide = ops.gelu_backward(&wide, &d_active);
            drop((wide, d_active));
            block.weights[0].gradient = Some(ops.product(&x, &d_wide, [WIDTH, ROWS, WIDE], [true, false]));
            block.biases[0].gradient = Some(ops.column_sums(&d_wide, WIDE));
            let dx = ops.product(&d_wide, &block.weights[0].value, [ROWS, WIDE, WIDTH], [false, true]);
            drop((x, d_wide));
            dy = ops.sum([1.0, 1.0], &dy, &dx);
        }
    }

    /// Returns the number of operations of the last step.
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// Returns the mean squared error.
    pub(crate) fn loss(&mut self) -> f64 {
        let pool = self.ops.pool.pool().clone();
        let (output, _) = self.forward(&pool);
        let difference = self.ops.sum([1.0, -1.0], &output, &self.target);
        let differences = difference.read().expect("the GPU completes its work");
        differences.iter().map(|value| f64::from(value * value)).sum::<f64>() / differences.len() as f64
    }
}

const NAMES: [&str; BLOCKS] = ["block0", "block1", "block2", "block3", "block4", "block5", "block6", "block7"];
