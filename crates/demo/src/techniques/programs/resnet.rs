//! A program that trains a small ResNet on generated images.

use std::rc::Rc;

use fastrand::Rng;
use vramscope_collector::{Category, Scope};

use super::super::run::{ProgramState, Run};
use super::training::ForwardBytes;
use crate::device::Device;
use crate::error::Result;
use crate::models::ResNet;
use crate::random::normal;
use crate::tensor::Tensor;

/// Number of channels of an image.
const CHANNELS: usize = 3;
/// Number of classes of the images.
const CLASSES: usize = 10;

/// Returns `count` images of square patterns, and their classes. The brightness depends on the
/// class.
fn images(device: &Device, count: usize, pixels: usize, seed: u64) -> Result<(Tensor, Tensor)> {
    let _scope = Scope::open_with("data", Category::Input);
    let mut rng = Rng::with_seed(seed);
    let classes: Vec<u32> = (0..count).map(|_| rng.u32(..CLASSES as u32)).collect();
    let image = CHANNELS * pixels * pixels;
    let values: Vec<f32> = classes
        .iter()
        .flat_map(|&class| std::iter::repeat_n(class as f32 / CLASSES as f32, image))
        .map(|brightness| brightness + normal(&mut rng, 0.2))
        .collect();
    let shape = [count, CHANNELS, pixels, pixels];
    Ok((Tensor::from_f32(device, &shape, &values)?, Tensor::from_u32(device, &[count], &classes)?))
}

/// Trains the ResNet.
pub(in super::super) fn run(run: &mut Run<'_>) -> Result<ProgramState> {
    let (device, settings) = (run.device, run.settings);
    let model = {
        let _scope = Scope::open("model");
        ResNet::new(device, CHANNELS, settings.depth, CLASSES, settings.seed)?
    };
    let mut trainer = settings.trainer(device, model.parameters())?;
    let forward = Rc::new(ForwardBytes::default());
    trainer.add_callback(forward.clone());
    run.each_step(|step| {
        let (images, classes) = images(device, settings.batch, settings.pixels, settings.seed ^ (step << 20))?;
        let losses = trainer.step(|_| model.forward(&images, true)?.cross_entropy(&classes))?;
        losses[0].item()
    })?;
    run.bytes("activation_bytes", forward.largest());
    run.optimizers([&trainer]);
    Ok(Box::new((model, trainer)))
}
