//! Memory techniques as switches: programs that train, infer or load data, and changes of these
//! programs that tutorials teach.
//!
//! [`Technique::all`] is the table. A [`Plan`] combines techniques that work in one program;
//! [`Plan::run`] runs it and returns a [`TechniqueReport`]. Runs are reproducible: losses depend on
//! the seed and sizes, not on time or on the number of cores; on a GPU, the losses of
//! `no-record-stream` depend on time, too.
//!
//! `settings` has the sizes and switches, `registry` the table of techniques, `sizes` the sizes at
//! which effects show, `programs` the programs, and `allocators` the alternatives to the pool.

mod allocators;
mod programs;
mod registry;
mod report;
mod run;
mod settings;
mod sizes;
mod technique;

use std::any::Any;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use thiserror::Error;
use vramscope_collector::{ConfError, HostPool, Settings as PoolSettings};

pub use report::{Figure, TechniqueReport, TechniqueStep};
pub use settings::{DeviceKind, Scale, Sizes};
pub use technique::{Program, Technique};

use crate::device::Device;
use crate::error::TensorError;
use crate::techniques::run::Run;
use settings::{Allocator, Settings};

/// An error of a plan of techniques, or of its run.
#[derive(Debug, Error)]
pub enum TechniqueError {
    /// There is no technique with this name.
    #[error("there is no technique {0:?}: see vramscope demo --list")]
    Unknown(String),
    /// Two techniques work in different programs.
    #[error(
        "{first} is for {}, {second} for {}: choose techniques that work in one program",
        programs[0],
        programs[1]
    )]
    Programs {
        /// The name of the first technique.
        first: &'static str,
        /// The name of the second technique.
        second: &'static str,
        /// Descriptions of their programs.
        programs: [&'static str; 2],
    },
    /// Two techniques exclude each other.
    #[error("{first} and {second} both choose the {choice}: choose one of them")]
    Conflict {
        /// The name of the first technique.
        first: &'static str,
        /// The name of the second technique.
        second: &'static str,
        /// The setting that both choose.
        choice: &'static str,
    },
    /// The sizes do not fit the techniques.
    #[error("{0}")]
    Sizes(String),
    /// The technique `allocator-async` was chosen on the host.
    #[error("allocator-async needs a GPU: use --device cuda")]
    NeedsGpu,
    /// The pool's settings cannot be combined.
    #[error(transparent)]
    Conf(#[from] ConfError),
    /// An operation failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Techniques of one program, with the sizes to run it with.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The names, joined by commas.
    name: String,
    program: Program,
    settings: Settings,
}

/// A finished run. It keeps the program's memory until it is dropped; a recording that ends before
/// then shows that memory as allocated.
pub struct Finished {
    /// The measured results.
    pub report: TechniqueReport,
    _kept: Box<dyn Any>,
}

impl Plan {
    /// Combines techniques, given by name, with the user's `sizes`, for a kind of device.
    ///
    /// # Errors
    /// If a name is unknown, the techniques cannot be combined, or the sizes do not fit them.
    pub fn new(names: &[impl AsRef<str>], device: DeviceKind, sizes: &Sizes) -> Result<Self, TechniqueError> {
        let techniques = find(names)?;
        Self::of(&techniques, &techniques, device, sizes)
    }

    /// Combines techniques for two runs that are compared: both have the sizes that either of them
    /// needs.
    ///
    /// # Errors
    /// As for [`new`](Self::new), and if the two belong to different programs.
    pub fn pair(
        names: [&[impl AsRef<str>]; 2],
        device: DeviceKind,
        sizes: &Sizes,
    ) -> Result<[Self; 2], TechniqueError> {
        let [first, second] = [find(names[0])?, find(names[1])?];
        // A baseline's sizes are set first, because its techniques change them.
        let mut all = [first.clone(), second.clone()].concat();
        all.sort_by_key(|technique| !technique.is_baseline());
        Ok([Self::of(&first, &all, device, sizes)?, Self::of(&second, &all, device, sizes)?])
    }

    /// Combines `techniques`. The techniques in `sized` that belong to this program set its sizes.
    fn of(
        techniques: &[&'static Technique],
        sized: &[&'static Technique],
        device: DeviceKind,
        sizes: &Sizes,
    ) -> Result<Self, TechniqueError> {
        if techniques.is_empty() {
            return Err(TechniqueError::Sizes("name at least one technique".to_owned()));
        }
        let program = common_program(sized)?;
        for (index, second) in techniques.iter().enumerate() {
            for first in &techniques[..index] {
                if let Some(choice) = first.choice.filter(|_| first.choice == second.choice) {
                    return Err(TechniqueError::Conflict { first: first.name, second: second.name, choice });
                }
            }
        }
        let mut settings = Settings::new(device, sizes.scale);
        // Only techniques of this program set its sizes.
        let sizes_of = sized.iter().filter(|technique| technique.program == program);
        sizes_of.for_each(|technique| (technique.sizes)(&mut settings));
        settings.set_sizes(sizes);
        techniques.iter().for_each(|technique| (technique.apply)(&mut settings));
        if let Some(problem) = settings.problem() {
            return Err(TechniqueError::Sizes(problem));
        }
        if settings.allocator == Allocator::Async && device == DeviceKind::Host {
            return Err(TechniqueError::NeedsGpu);
        }
        settings.pool_settings()?;
        let names: Vec<&str> = techniques.iter().map(|technique| technique.name).collect();
        Ok(Self { name: names.join(","), program, settings })
    }

    /// Returns the techniques' names, joined by commas.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.settings.steps
    }

    /// Returns the settings of the pool that the program runs on.
    #[must_use]
    pub fn pool_settings(&self) -> PoolSettings {
        self.settings.pool_settings().expect("new() has checked the settings")
    }

    /// Creates a host device whose tensors are in `pool`. If a technique chooses another allocator,
    /// tensors are in that one, limited to `capacity_bytes`, and `pool` only records marks and
    /// spans.
    ///
    /// # Errors
    /// If the device cannot be created.
    pub fn host_device(&self, pool: HostPool, capacity_bytes: u64) -> Result<Device, TechniqueError> {
        Ok(match self.settings.allocator {
            Allocator::Pool => Device::host(pool)?,
            Allocator::Driver | Allocator::Async => allocators::host(pool, capacity_bytes)?,
        })
    }

    /// Creates a device on the GPU of `context` whose tensors are in `pool`. If a technique chooses
    /// another allocator, tensors are in that one, and `pool` only records marks and spans.
    ///
    /// # Errors
    /// If cuBLAS or NVRTC is not installed, or the driver fails.
    #[cfg(feature = "cuda")]
    pub fn cuda_device(
        &self,
        pool: vramscope_collector::CudaPool,
        context: &std::sync::Arc<cudarc::driver::CudaContext>,
    ) -> Result<Device, TechniqueError> {
        let allocator = self.settings.allocator;
        Ok(match allocator {
            Allocator::Pool => Device::cuda(Box::new(pool), context)?,
            Allocator::Driver | Allocator::Async => {
                let memory = allocators::cuda::CudaMemory::new(pool, context, allocator == Allocator::Async)?;
                Device::cuda(Box::new(memory), context)?
            }
        })
    }

    /// Runs the program on `device` until all steps are done or `stop` is set. Calls `on_step`
    /// after each step, and sleeps after steps that took less than `min_step_time`.
    ///
    /// # Errors
    /// If memory or kernels fail.
    pub fn run(
        &self,
        device: &Device,
        stop: &AtomicBool,
        min_step_time: Duration,
        on_step: &mut dyn FnMut(&TechniqueStep),
    ) -> Result<Finished, TechniqueError> {
        let mut run = Run::new(device, &self.settings, stop, min_step_time, on_step);
        let program = match self.program {
            Program::Training => programs::training::run,
            Program::ResNet => programs::resnet::run,
            Program::TwoLayer => programs::two_layer::run,
            Program::Inference => programs::inference::run,
            Program::Generation => programs::generation::run,
            Program::Loading => programs::loading::run,
            Program::BatchSearch => programs::batch_search::run,
            Program::Streams => programs::streams::run,
            Program::Graphs => programs::graphs::run,
        };
        let kept = program(&mut run)?;
        device.synchronize()?;
        Ok(Finished { report: run.finish(self.name.clone()), _kept: kept })
    }
}

/// Returns the program of one of the techniques in which all of them work.
fn common_program(techniques: &[&'static Technique]) -> Result<Program, TechniqueError> {
    let mut programs = techniques.iter().map(|technique| technique.program);
    let is_common = |program: &Program| techniques.iter().all(|technique| technique.works_in(*program));
    programs.find(is_common).ok_or_else(|| {
        let pairs = techniques
            .iter()
            .enumerate()
            .flat_map(|(index, first)| techniques[index + 1..].iter().map(move |second| (first, second)));
        let differs = |(first, second): &(&&Technique, &&Technique)| {
            !second.works_in(first.program) && !first.works_in(second.program)
        };
        // If any two combine but not all together, the error names the first and the last.
        let ends = (&techniques[0], &techniques[techniques.len() - 1]);
        let (first, second) = pairs.into_iter().find(differs).unwrap_or(ends);
        let programs = [first.program.name(), second.program.name()];
        TechniqueError::Programs { first: first.name, second: second.name, programs }
    })
}

/// Returns the techniques with these names.
fn find(names: &[impl AsRef<str>]) -> Result<Vec<&'static Technique>, TechniqueError> {
    let find = |name: &str| Technique::by_name(name).ok_or_else(|| TechniqueError::Unknown(name.to_owned()));
    names.iter().map(|name| find(name.as_ref().trim())).collect()
}
