//! Real training and inference whose tensors are all in the pool, on the host and on GPUs: a small
//! tensor library, models, and memory techniques as switches.
//!
//! - [`Tensor`] has its elements in a [`Device`]'s memory. [`autograd`] differentiates, [`models`]
//!   has a perceptron, a GPT and a ResNet, [`optimizers`] SGD and Adam, [`training`] the training
//!   step.
//! - [`techniques`] has the memory techniques and their programs, [`tools`] the tables of a running
//!   program: memory by phase, by source line and by operation.
//! - [`run`] is the default demo: a perceptron learns to classify generated images of digits. Batch
//!   sizes vary from step to step, so the pool's segments fragment.
//! - In a recording, parameters, gradients, optimizer state, activations and inputs have their
//!   categories, layers their scopes, operations their frames, and steps their spans.
//!
//! ```
//! use vramscope_collector::{HostDevice, HostPool, Settings};
//! use vramscope_demo::models::Perceptron;
//! use vramscope_demo::optimizers::{Adam, Method, Optimizer};
//! use vramscope_demo::training::{StepOptions, Trainer};
//! use vramscope_demo::{Device, Tensor};
//! use vramscope_trace::NullSink;
//!
//! // A pool that is not recorded, over 64 MiB of this machine's memory.
//! let pool = HostPool::new(HostDevice::new(64 << 20), Settings::default(), NullSink, || 0);
//! let device = Device::host(pool)?;
//! // Exclusive or: two inputs, two classes.
//! let x = Tensor::from_f32(&device, &[4, 2], &[0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0])?;
//! let classes = Tensor::from_u32(&device, &[4], &[0, 1, 1, 0])?;
//!
//! let model = Perceptron::new(&device, &[2, 16, 2], 1)?;
//! let optimizer = Optimizer::new(Method::Adam(Adam::default()), 0.02);
//! let mut trainer = Trainer::new(&device, model.parameters(), optimizer, StepOptions::default())?;
//! for _ in 0..200 {
//!     trainer.step(|_| model.forward(&x)?.cross_entropy(&classes))?;
//! }
//! assert_eq!(model.forward(&x)?.argmax()?.to_u32()?, [0, 1, 1, 0]);
//! println!("peak: {} bytes", device.stats().allocated_bytes.all.peak);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All results are reproducible by seed, and losses do not depend on how memory is used. The
//! library has what the demo needs and no more: tensors are contiguous, and one thread uses a
//! device. This crate prints nothing and serves nothing; the `vramscope` command does.
//!
//! # Errors and panics
//!
//! Wrong shapes, types and devices, a lack of memory and failures of a GPU are [`TensorError`]s,
//! after which a program can go on. A function panics only where its documentation says so.
//!
//! # Features
//!
//! | feature | adds |
//! | --- | --- |
//! | **`cuda`** (on by default) | GPUs, by `Device::cuda`; needs an NVIDIA driver, NVRTC and cuBLAS
//! at run time |

mod autocast;
pub mod autograd;
mod backend;
mod callbacks;
mod data;
mod device;
mod digits;
mod dtype;
mod error;
#[cfg(test)]
mod gradient_comparison_tests;
mod gradient_graph;
mod gradient_mode;
#[cfg(test)]
mod gradient_tests;
mod memory;
pub mod models;
mod modules;
mod operation;
mod ops;
pub mod optimizers;
mod random;
pub mod techniques;
mod tensor;
pub mod tokens;
pub mod tools;
mod train;
pub mod training;

pub use autocast::{Autocast, autocast};
#[cfg(feature = "cuda")]
pub use cudarc::driver::CudaContext;
pub use device::Device;
pub use dtype::DType;
pub use error::{Result, TensorError};
pub use memory::{Memory, SpanGuard};
pub use modules::Parameter;
pub use operation::Module;
pub use ops::ConvolutionOptions;
pub use tensor::Tensor;
pub use train::{DemoError, Options, Step, Summary, run};
#[cfg(feature = "cuda")]
pub use vramscope_collector::{CudaDevice, CudaError, CudaPool};

/// The README's example, compiled as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
