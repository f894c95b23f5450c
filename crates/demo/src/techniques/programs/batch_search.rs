//! A program that searches for the largest batch under a memory limit, and then trains with it. The
//! search grows the batch until a step runs out of memory, recovers, and bisects.

use super::super::report::Figure;
use super::super::run::{ProgramState, Run};
use super::training::Training;
use crate::device::Device;
use crate::error::{Result, arguments};
use crate::optimizers::{ClearGradients, clear_gradients};
use crate::tokens::Text;

/// Runs one training step with `batch` sequences. If it runs out of memory, frees the gradients
/// that the step has computed and returns false.
fn fits(run: &Run<'_>, model: &mut Training, text: &Text, batch: usize) -> Result<bool> {
    let Run { device, settings, .. } = *run;
    device.memory().mark(&format!("batch {batch}"));
    let trained = text.batch(device, batch, settings.gpt.length, 0).and_then(|tokens| model.step(settings, &tokens));
    match trained {
        Ok(_) => Ok(true),
        Err(error) if error.is_out_of_memory() => {
            device.memory().mark("out of memory");
            // The failed step has freed its graph, but not the gradients that it had computed.
            clear_gradients(model.trainer.parameters(), ClearGradients::ToNone)?;
            device.memory().empty_cache()?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Returns the largest batch that fits, with a precision of an eighth. Appends each batch size that
/// it tries to `tried`, with true if it fitted.
fn search(run: &Run<'_>, model: &mut Training, text: &Text, tried: &mut Vec<(usize, bool)>) -> Result<usize> {
    let (mut good, mut bad) = (0, run.settings.batch);
    while fits(run, model, text, bad)? {
        tried.push((bad, true));
        (good, bad) = (bad, 2 * bad);
    }
    tried.push((bad, false));
    while bad - good > (good / 8).max(1) {
        let middle = good.midpoint(bad);
        let is_good = fits(run, model, text, middle)?;
        tried.push((middle, is_good));
        if is_good { good = middle } else { bad = middle }
    }
    Ok(good)
}

/// Returns the tried batch sizes that fitted (`is_good`) or that failed.
fn batches(tried: &[(usize, bool)], is_good: bool) -> Vec<u64> {
    tried.iter().filter(|batch| batch.1 == is_good).map(|batch| batch.0 as u64).collect()
}

/// Searches for the batch size, then trains.
pub(in super::super) fn run(run: &mut Run<'_>) -> Result<ProgramState> {
    let (device, settings): (&Device, _) = (run.device, run.settings);
    let text = Text::new(settings.gpt.vocabulary, settings.seed);
    let mut model = Training::new(device, settings, settings.seed)?;
    let mut tried = Vec::new();
    let batch = match settings.searches_batch {
        true => search(run, &mut model, &text, &mut tried)?,
        false => settings.batch,
    };
    if batch == 0 {
        return Err(arguments("batch-search", "not even one sequence fits under the memory limit"));
    }
    run.each_step(|step| {
        let tokens = text.batch(device, batch, settings.gpt.length, step)?;
        model.step(settings, &tokens)
    })?;
    run.figure("largest_batch", Figure::Count(batch as u64));
    run.figure("fitting_batches", Figure::List(batches(&tried, true)));
    run.figure("failed_batches", Figure::List(batches(&tried, false)));
    run.figure("out_of_memory_errors", Figure::Count(device.stats().num_ooms));
    run.bytes("limit_bytes", settings.limit_bytes.unwrap_or_default());
    run.optimizers([&model.trainer]);
    Ok(Box::new(model))
}
