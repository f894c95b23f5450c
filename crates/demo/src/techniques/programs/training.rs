//! A program that trains one or more GPTs. Batch size and sequence length may vary; each step may
//! be followed by a pass over held-out data.

use std::cell::Cell;
use std::rc::Rc;

use vramscope_collector::{Category, Scope};

use super::super::report::Figure;
use super::super::run::{ProgramState, Run};
use super::super::settings::{EmptyCache, KeptResults, Settings};
use crate::autograd::no_grad;
use crate::callbacks::{Callback, Phase};
use crate::device::Device;
use crate::error::Result;
use crate::models::Gpt;
use crate::tensor::Tensor;
use crate::tokens::{Text, TokenBatch};
use crate::training::Trainer;

/// A callback that measures how many bytes a forward pass leaves allocated.
#[derive(Default)]
pub(super) struct ForwardBytes {
    before: Cell<u64>,
    largest: Cell<u64>,
}

impl ForwardBytes {
    /// Returns the maximum number of bytes that one forward pass has left allocated: activations
    /// and logits.
    pub(super) fn largest(&self) -> u64 {
        self.largest.get()
    }
}

impl Callback for ForwardBytes {
    fn before(&self, phase: Phase, _step: u64, device: &Device) {
        if phase == Phase::Forward {
            self.before.set(device.memory().allocated_bytes());
        }
    }

    fn after(&self, phase: Phase, _step: u64, device: &Device) {
        if phase == Phase::Forward {
            let left = device.memory().allocated_bytes().saturating_sub(self.before.get());
            self.largest.set(self.largest.get().max(left));
        }
    }
}

/// A GPT with its trainer.
pub(super) struct Training {
    pub(super) gpt: Gpt,
    pub(super) trainer: Trainer,
}

impl Training {
    /// Creates a GPT and its trainer from `settings`, with random parameters from `seed`.
    pub(super) fn new(device: &Device, settings: &Settings, seed: u64) -> Result<Self> {
        let _scope = Scope::open("model");
        let gpt = Gpt::new(device, settings.gpt, seed)?;
        let trainer = settings.trainer(device, gpt.parameters())?;
        Ok(Self { gpt, trainer })
    }

    /// Runs a training step and returns the mean loss.
    pub(super) fn step(&mut self, settings: &Settings, batch: &TokenBatch) -> Result<f32> {
        let len = batch.inputs.shape()[0] / settings.parts;
        let (gpt, trainer) = (&self.gpt, &mut self.trainer);
        // Like a variable of a training loop, keeps the logits until the next forward pass.
        let mut logits = None;
        let losses = trainer.step(|part| {
            let inputs = batch.inputs.narrow(part * len, len)?;
            let targets = batch.targets.narrow(part * len, len)?;
            logits = None;
            let computed = gpt.forward(&inputs, settings.recompute)?;
            let loss = computed.cross_entropy(&targets)?;
            if !settings.frees_logits {
                logits = Some(computed);
            }
            Ok(loss)
        })?;
        drop(logits);
        let sum = losses.iter().map(Tensor::item).sum::<Result<f32>>()?;
        Ok(sum / losses.len() as f32)
    }

    /// Returns the size of all parameters, in bytes.
    fn parameter_bytes(&self) -> usize {
        self.trainer.parameters().iter().map(|parameter| parameter.value.bytes()).sum()
    }

    /// Moves parameters, gradients and optimizer state to the host.
    fn move_to_host(&self) -> Result {
        for parameter in self.trainer.parameters() {
            // Drops the gradients, as PyTorch programs clear them before they move a model.
            drop(parameter.value.take_grad());
            parameter.value.move_to_host()?;
        }
        self.trainer.optimizer().state_tensors().iter().try_for_each(Tensor::move_to_host)
    }

    /// Moves parameters and optimizer state back to the device.
    fn move_to_device(&self) -> Result {
        {
            let _scope = Scope::open_with("model", Category::Parameter);
            for parameter in self.trainer.parameters() {
                parameter.value.move_to_device()?;
            }
        }
        let _scope = Scope::open_with("optimizer", Category::OptimizerState);
        self.trainer.optimizer().state_tensors().iter().try_for_each(Tensor::move_to_device)
    }
}

/// The kept results of passes over held-out data.
#[derive(Default)]
struct HeldOut {
    /// Outputs that are kept on the device.
    outputs: Vec<Tensor>,
    /// The sum of losses that are kept as tensors.
    loss: Option<Tensor>,
    /// Outputs that are kept on the host.
    on_host: Vec<f32>,
}

impl HeldOut {
    /// Computes the predictions for held-out sequences. Like the programs in tutorials, it omits
    /// `no_grad`, so that a graph stays allocated if a kept result refers to it.
    fn evaluate(&mut self, gpt: &Gpt, settings: &Settings, text: &Text, device: &Device, step: u64) -> Result {
        let batch = text.batch(device, settings.evaluated, settings.gpt.length, u64::from(u32::MAX) + step)?;
        let _span = device.span("evaluate");
        let _scope = Scope::open_with("evaluate", Category::Activation);
        let logits = gpt.forward(&batch.inputs, settings.recompute)?;
        match settings.kept {
            KeptResults::OnHost => self.on_host.push(logits.mean()?.item()?),
            KeptResults::Outputs => self.outputs.push(logits.detach()),
            KeptResults::OutputsWithGraph => self.outputs.push(logits),
            KeptResults::LossesWithGraph => {
                let loss = logits.cross_entropy(&batch.targets)?;
                self.loss = Some(match self.loss.take() {
                    Some(sum) => sum.add(&loss)?,
                    None => loss,
                });
            }
        }
        Ok(())
    }
}

/// Trains the GPTs.
pub(in super::super) fn run(run: &mut Run<'_>) -> Result<ProgramState> {
    let (device, settings) = (run.device, run.settings);
    let text = Text::new(settings.gpt.vocabulary, settings.seed);
    let mut models = Vec::new();
    let forward = Rc::new(ForwardBytes::default());
    for index in 0..settings.models {
        let mut model = Training::new(device, settings, settings.seed + index as u64)?;
        model.trainer.add_callback(forward.clone());
        if settings.offloads {
            model.move_to_host()?;
        }
        models.push(model);
    }
    let mut held_out = HeldOut::default();
    run.each_step(|step| {
        let index = step as usize % models.len();
        let model = &mut models[index];
        if settings.offloads {
            let _span = device.span("to device");
            model.move_to_device()?;
        }
        let batch = text.batch(device, settings.batch_at(step), settings.length_at(step), step)?;
        let loss = model.step(settings, &batch)?;
        drop(batch);
        if settings.evaluated > 0 {
            held_out.evaluate(&model.gpt, settings, &text, device, step)?;
        }
        if settings.offloads {
            let _span = device.span("to host");
            model.move_to_host()?;
        }
        let is_due = match settings.empty_cache {
            EmptyCache::Never => false,
            EmptyCache::AfterWarmUp => step == 0,
            EmptyCache::EveryStep => true,
        };
        if is_due {
            device.memory().mark("empty_cache");
            device.memory().empty_cache()?;
        }
        Ok(loss)
    })?;
    run.bytes("activation_bytes", forward.largest());
    run.bytes("parameter_bytes", models[0].parameter_bytes() as u64);
    run.optimizers(models.iter().map(|model| &model.trainer));
    if settings.releases_memory {
        device.memory().mark("release");
        drop(models);
        let stats = device.stats();
        run.bytes("allocated_after_drop_bytes", stats.allocated_bytes.all.current);
        run.bytes("reserved_after_drop_bytes", stats.reserved_bytes.all.current);
        device.memory().mark("empty_cache");
        device.memory().empty_cache()?;
        return Ok(Box::new(held_out));
    }
    if !held_out.on_host.is_empty() {
        run.figure("results_on_host", Figure::Count(held_out.on_host.len() as u64));
    }
    if let Some(sum) = &held_out.loss {
        let _mode = no_grad();
        let mean = f64::from(sum.item()?) / run.settings.steps as f64;
        run.figure("mean_held_out_loss", Figure::Number(mean));
    }
    Ok(Box::new((models, held_out)))
}
