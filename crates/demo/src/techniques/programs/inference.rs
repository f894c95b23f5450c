//! A program that computes the predictions of a GPT, batch after batch.

use vramscope_collector::{Category, Scope};

use super::super::run::{ProgramState, Run, StepScope};
use crate::autograd::{enable_grad, no_grad};
use crate::error::Result;
use crate::models::Gpt;
use crate::tokens::Text;

/// Computes predictions. The reported peaks exclude the creation of the model, because quantization
/// briefly needs both forms of a weight.
pub(in super::super) fn run(run: &mut Run<'_>) -> Result<ProgramState> {
    let (device, settings) = (run.device, run.settings);
    let text = Text::new(settings.gpt.vocabulary, settings.seed);
    let gpt = {
        let _scope = Scope::open("model");
        let _mode = no_grad();
        let mut gpt = Gpt::new(device, settings.gpt, settings.seed)?;
        if settings.int8_weights {
            gpt.quantize()?;
        }
        gpt
    };
    device.memory().empty_cache()?;
    device.memory().reset_peaks();
    let mut kept_by_output = 0;
    run.each_step(|step| {
        let _step = StepScope::begin(device, step);
        let _mode = if settings.records_graph { enable_grad() } else { no_grad() };
        let batch = text.batch(device, settings.batch, settings.gpt.length, step)?;
        let before = device.memory().allocated_bytes();
        let _scope = Scope::open_with("forward", Category::Activation);
        let logits = gpt.forward(&batch.inputs, settings.recompute)?;
        kept_by_output = device.memory().allocated_bytes() - before;
        let loss = {
            let _mode = no_grad();
            logits.detach().cross_entropy(&batch.targets)?
        };
        loss.item()
    })?;
    run.bytes("kept_by_output_bytes", kept_by_output);
    run.bytes("weight_bytes", gpt.weight_bytes() as u64);
    Ok(Box::new(gpt))
}
