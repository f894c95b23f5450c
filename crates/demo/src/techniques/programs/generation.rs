//! A program that generates text with a GPT, one token per step.

use vramscope_collector::{Category, Scope};

use super::super::report::Figure;
use super::super::run::{ProgramState, Run, StepScope};
use crate::autograd::no_grad;
use crate::device::Device;
use crate::error::Result;
use crate::models::Gpt;
use crate::tensor::Tensor;
use crate::tokens::Text;

/// Sequences of tokens, on the host.
struct Sequences(Vec<Vec<u32>>);

impl Sequences {
    /// Copies the last `count` tokens of each sequence to the device.
    fn upload_last(&self, device: &Device, count: usize) -> Result<Tensor> {
        let _scope = Scope::open_with("data", Category::Input);
        let tokens: Vec<u32> = self.0.iter().flat_map(|tokens| &tokens[tokens.len() - count..]).copied().collect();
        Tensor::from_u32(device, &[self.0.len(), count], &tokens)
    }

    /// Appends the most likely next token to each sequence.
    fn append(&mut self, logits: &Tensor) -> Result {
        let likely = logits.argmax()?.to_u32()?;
        let length = likely.len() / self.0.len();
        for (sequence, likely) in self.0.iter_mut().zip(likely.chunks_exact(length)) {
            sequence.extend(likely.last());
        }
        Ok(())
    }
}

/// Generates text. The reported peaks exclude the first step, which computes the whole prompt
/// whether there is a cache or not.
pub(in super::super) fn run(run: &mut Run<'_>) -> Result<ProgramState> {
    let (device, settings) = (run.device, run.settings);
    let _mode = no_grad();
    let text = Text::new(settings.gpt.vocabulary, settings.seed).sequences(settings.batch, settings.prompt, 0);
    let mut sequences = Sequences(text.chunks_exact(settings.prompt).map(<[u32]>::to_vec).collect());
    let gpt = {
        let _scope = Scope::open("model");
        Gpt::new(device, settings.gpt, settings.seed)?
    };
    let empty_cache = || {
        let _scope = Scope::open_with("cache", Category::Activation);
        gpt.cache(device, settings.batch, settings.gpt.length)
    };
    let mut cache = settings.kv_cache.then(empty_cache).transpose()?;
    run.each_step(|step| {
        let step_scope = StepScope::begin(device, step);
        let length = sequences.0[0].len();
        let count = if step > 0 && cache.is_some() { 1 } else { length };
        let tokens = sequences.upload_last(device, count)?;
        let forward_scope = Scope::open_with("forward", Category::Activation);
        let logits = match &mut cache {
            Some(cache) => gpt.forward_cached(&tokens, cache)?,
            None => gpt.forward(&tokens, settings.recompute)?,
        };
        sequences.append(&logits)?;
        // The mean of the logits of the newest token, which both variants compute.
        let newest = logits.to_f32()?;
        let vocabulary = settings.gpt.vocabulary;
        let mean = newest[newest.len() - vocabulary..].iter().sum::<f32>() / vocabulary as f32;
        drop((logits, tokens, forward_scope, step_scope));
        if step == 0 {
            device.memory().reset_peaks();
        }
        Ok(mean)
    })?;
    run.bytes("cache_bytes", cache.as_ref().map_or(0, |cache| cache.bytes() as u64));
    let generated = sequences.0[0][settings.prompt..].iter().map(|&token| u64::from(token)).collect();
    run.figure("generated_tokens", Figure::List(generated));
    Ok(Box::new((gpt, cache)))
}
