//! A net of eight residual blocks that learns a fixed batch, every tensor of which is in the pool: what the step of a transformer asks for,
//! without the attention.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::cublas::sys::cublasOperation_t::{CUBLAS_OP_N, CUBLAS_OP_T};
use cudarc::cublas::{self, CudaBlas, Gemm, GemmConfig};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use cudarc::nvrtc;
use vramscope_collector::{Category, CudaDevice, CudaPool, PoolSlice, PoolStream};

/// Two texts of 128 tokens.
const ROWS: usize = 256;
const WIDTH: usize = 512;
const WIDE: usize = 4 * WIDTH;
const BLOCKS: usize = 8;
const RATE: f32 = 1e-3;

type Tensor = PoolSlice<f32, CudaDevice>;

/// Whether there is what this needs beside the driver.
pub(crate) fn has_libraries() -> bool {
    // SAFETY: Loading the libraries runs their initializers, which are meant to run in any program.
    unsafe { cublas::sys::is_culib_present() && nvrtc::sys::is_culib_present() }
}

/// A parameter, and what the optimizer keeps of it.
struct Parameter {
    value: Tensor,
    mean: Tensor,
    square: Tensor,
    gradient: Option<Tensor>,
}

/// x + W2 gelu(W1 x + b1) + b2
struct Block {
    weights: [Parameter; 2],
    biases: [Parameter; 2],
}

/// What the backward pass needs of the forward pass of a block.
struct Saved {
    x: Tensor,
    wide: Tensor,
    active: Tensor,
}

struct Kernels(Arc<cudarc::driver::CudaModule>);

impl Kernels {
    fn load(&self, name: &str) -> CudaFunction {
        self.0.load_function(name).expect("it is among the kernels")
    }
}

/// Does the arithmetic, each result in memory of the pool.
struct Machine {
    stream: Arc<CudaStream>,
    pool: PoolStream<CudaDevice>,
    blas: CudaBlas,
    kernels: std::collections::HashMap<&'static str, CudaFunction>,
    /// How long the processor is busy before the GPU is given an operation.
    spin: Duration,
    operations: usize,
}

const KERNELS: [&str; 9] =
    ["add_bias", "gelu", "gelu_backward", "sum", "square", "quotient", "decay", "descend", "column_sums"];

/// Launches a kernel over `count` threads.
macro_rules! launch {
    ($machine:expr, $name:literal, $count:expr, $($argument:expr),+) => {{
        $machine.dispatch();
        let config = LaunchConfig::for_num_elems($count as u32);
        let mut launch = $machine.stream.launch_builder(&$machine.kernels[$name]);
        // SAFETY: The arguments are those of the kernel, whose threads touch no number beyond the counts given.
        unsafe { launch$(.arg($argument))+.launch(config) }.expect("it runs");
    }};
}

impl Machine {
    fn new(context: &Arc<CudaContext>, pool: &CudaPool) -> Self {
        let ptx = nvrtc::compile_ptx(include_str!("kernels.cu")).expect("it compiles");
        let kernels = Kernels(context.load_module(ptx).expect("a module"));
        let stream = context.default_stream();
        let blas = CudaBlas::new(Arc::clone(&stream)).expect("it was found");
        Self {
            pool: pool.on(&stream),
            blas,
            kernels: KERNELS.into_iter().map(|name| (name, kernels.load(name))).collect(),
            stream,
            spin: Duration::ZERO,
            operations: 0,
        }
    }

    fn dispatch(&mut self) {
        self.operations += 1;
        if !self.spin.is_zero() {
            let begin = Instant::now();
            while begin.elapsed() < self.spin {
                std::hint::spin_loop();
            }
        }
    }

    #[track_caller]
    fn tensor(&self, count: usize) -> Tensor {
        // SAFETY: Whatever is made of it writes all of it before any of it is read.
        unsafe { self.pool.alloc::<f32>(count) }.expect("the GPU has room")
    }

    /// a b, with either turned over first, as row-major matrices: `rows` by `inner` by `columns`.
    #[track_caller]
    fn product(&mut self, a: &Tensor, b: &Tensor, [rows, inner, columns]: [usize; 3], turned: [bool; 2]) -> Tensor {
        let mut out = self.tensor(rows * columns);
        self.dispatch();
        // cuBLAS has matrices by columns: what it is given is the product turned over, b' a'.
        let operation = |is_turned| if is_turned { CUBLAS_OP_T } else { CUBLAS_OP_N };
        let config = GemmConfig {
            transa: operation(turned[1]),
            transb: operation(turned[0]),
            m: columns as i32,
            n: rows as i32,
            k: inner as i32,
            alpha: 1.0,
            lda: if turned[1] { inner } else { columns } as i32,
            ldb: if turned[0] { rows } else { inner } as i32,
            beta: 0.0,
            ldc: columns as i32,
        };
        // SAFETY: Each of the three is a matrix of that size.
        unsafe { self.blas.gemm(config, b, a, &mut out) }.expect("it runs");
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

    /// a x + b y
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

    /// A step of Adam, whose bias is not corrected.
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

/// A net in training.
pub(crate) struct Net {
    machine: Machine,
    blocks: Vec<Block>,
    given: Tensor,
    wanted: Tensor,
    operations: usize,
    last: Vec<f32>,
}

impl Net {
    pub(crate) fn new(context: &Arc<CudaContext>, pool: &CudaPool) -> Self {
        let machine = Machine::new(context, pool);
        let mut seed = 1u64;
        let mut random = |count: usize, scale: f32| {
            let _parameter = pool.category(Category::Parameter);
            let values: Vec<f32> = (0..count)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    ((seed >> 40) as f32 / (1 << 24) as f32 - 0.5) * scale
                })
                .collect();
            machine.pool.clone_htod(&values).expect("the GPU has room")
        };
        let mut parameter = |count: usize, scale: f32| {
            let _state = pool.category(Category::OptimizerState);
            let zeros = || machine.pool.alloc_zeros::<f32>(count).expect("the GPU has room");
            Parameter { value: random(count, scale), mean: zeros(), square: zeros(), gradient: None }
        };
        let mut block = || Block {
            weights: [parameter(WIDTH * WIDE, 0.05), parameter(WIDE * WIDTH, 0.02)],
            biases: [parameter(WIDE, 0.0), parameter(WIDTH, 0.0)],
        };
        let blocks = (0..BLOCKS).map(|_| block()).collect();
        let (given, wanted) = (random(ROWS * WIDTH, 2.0), random(ROWS * WIDTH, 2.0));
        Self { machine, blocks, given, wanted, operations: 0, last: Vec::new() }
    }

    /// A step of training, the GPU's work included; the processor is busy for `spin` before each operation.
    pub(crate) fn step(&mut self, spin: Duration) {
        self.machine.spin = spin;
        self.machine.operations = 0;
        let pool = self.machine.pool.pool().clone();
        let _step = pool.scope("step");
        let (output, saved) = self.forward(&pool);
        let difference = {
            let _loss = pool.scope("loss");
            self.machine.sum([1.0, -1.0], &output, &self.wanted)
        };
        drop(output);
        self.backward(&pool, &difference, saved);
        {
            let _optimizer = pool.scope_with("optimizer", Category::Temporary);
            let Self { machine, blocks, .. } = self;
            let parameters = blocks.iter_mut().flat_map(|block| block.weights.iter_mut().chain(&mut block.biases));
            parameters.for_each(|parameter| machine.descend(parameter));
        }
        self.operations = self.machine.operations;
        self.machine.stream.synchronize().expect("the GPU works");
        drop(difference);
    }

    fn forward(&mut self, pool: &CudaPool) -> (Tensor, Vec<Saved>) {
        let _forward = pool.scope_with("forward", Category::Activation);
        let Self { machine, blocks, given, .. } = self;
        let mut x = machine.sum([1.0, 0.0], given, given);
        let mut saved = Vec::with_capacity(BLOCKS);
        for (n, block) in blocks.iter().enumerate() {
            let _block = pool.scope(NAMES[n]);
            let product = machine.product(&x, &block.weights[0].value, [ROWS, WIDTH, WIDE], [false; 2]);
            let wide = machine.add_bias(&product, &block.biases[0].value);
            drop(product);
            let active = machine.gelu(&wide);
            let product = machine.product(&active, &block.weights[1].value, [ROWS, WIDE, WIDTH], [false; 2]);
            let added = machine.add_bias(&product, &block.biases[1].value);
            drop(product);
            let next = machine.sum([1.0, 1.0], &x, &added);
            saved.push(Saved { x: std::mem::replace(&mut x, next), wide, active });
        }
        (x, saved)
    }

    fn backward(&mut self, pool: &CudaPool, difference: &Tensor, mut saved: Vec<Saved>) {
        let _backward = pool.scope_with("backward", Category::Gradient);
        let Self { machine, blocks, .. } = self;
        // Of the mean of squares.
        let scale = 2.0 / (ROWS * WIDTH) as f32;
        let mut dy = machine.sum([scale, 0.0], difference, difference);
        for (n, block) in blocks.iter_mut().enumerate().rev() {
            let _block = pool.scope(NAMES[n]);
            let Some(Saved { x, wide, active }) = saved.pop() else { return };
            block.weights[1].gradient = Some(machine.product(&active, &dy, [WIDE, ROWS, WIDTH], [true, false]));
            block.biases[1].gradient = Some(machine.column_sums(&dy, WIDTH));
            drop(active);
            let d_active = machine.product(&dy, &block.weights[1].value, [ROWS, WIDTH, WIDE], [false, true]);
            let d_wide = machine.gelu_backward(&wide, &d_active);
            drop((wide, d_active));
            block.weights[0].gradient = Some(machine.product(&x, &d_wide, [WIDTH, ROWS, WIDE], [true, false]));
            block.biases[0].gradient = Some(machine.column_sums(&d_wide, WIDE));
            let dx = machine.product(&d_wide, &block.weights[0].value, [ROWS, WIDE, WIDTH], [false, true]);
            drop((x, d_wide));
            dy = machine.sum([1.0, 1.0], &dy, &dx);
        }
    }

    /// How many operations the last step gave the GPU.
    pub(crate) fn operations(&self) -> usize {
        self.operations
    }

    /// How far the net is from what it is to learn: the mean of squares.
    pub(crate) fn loss(&mut self) -> f64 {
        let pool = self.machine.pool.pool().clone();
        let (output, _) = self.forward(&pool);
        let difference = self.machine.sum([1.0, -1.0], &output, &self.wanted);
        self.last = difference.read().expect("the GPU works");
        self.last.iter().map(|value| f64::from(value * value)).sum::<f64>() / self.last.len() as f64
    }
}

const NAMES: [&str; BLOCKS] = ["block0", "block1", "block2", "block3", "block4", "block5", "block6", "block7"];
