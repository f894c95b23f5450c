//! Trains a small GPT on the host and prints the tables of the tools: memory by phase, by source
//! line and by operation, and the allocator's counters.
//!
//! `tools [STEPS] [FOLDER]` writes an event file for TensorBoard to FOLDER, one record a step.

use std::env;
use std::error::Error;
use std::io::stdout;
use std::path::Path;
use std::rc::Rc;

use vramscope_collector::{Category, HostDevice, HostPool, Scope, Settings};
use vramscope_demo::models::{Gpt, GptConfig, Recompute};
use vramscope_demo::optimizers::{Adam, Method, Optimizer};
use vramscope_demo::tools::{LineTable, PhaseTable, Profiler, SortBy, TensorboardLog, Timing, print_memory};
use vramscope_demo::training::{StepOptions, Trainer};
use vramscope_demo::{Device, Tensor};
use vramscope_trace::NullSink;

/// Number of sequences in a batch, and number of tokens in a sequence.
const BATCH: [usize; 2] = [4, 64];

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let steps: u32 = arguments.next().map_or(Ok(10), |steps| steps.parse())?;
    let folder = arguments.next();

    let device = Device::host(HostPool::new(HostDevice::new(1 << 30), Settings::default(), NullSink, || 0))?;
    let lines = LineTable::new(&device);
    let profiler = Profiler::new(&device, Timing::Host);
    let phases = Rc::new(PhaseTable::new(&device, Timing::Host, 2));
    let log = folder.map(|folder| TensorboardLog::create(Path::new(&folder), &device, Timing::Host, 1)).transpose()?;
    let log = log.map(Rc::new);

    let config = GptConfig { vocabulary: 512, layers: 2, width: 64, heads: 4, length: BATCH[1] };
    let model = Gpt::new(&device, config, 1)?;
    let optimizer = Optimizer::new(Method::Adam(Adam::default()), 1e-3);
    let mut trainer = Trainer::new(&device, model.parameters(), optimizer, StepOptions::default())?;
    trainer.add_callback(phases.clone());
    if let Some(log) = &log {
        trainer.add_callback(log.clone());
    }
    for step in 0..steps {
        trainer.step(|_| {
            let tokens = {
                let _category = Scope::of(Category::Input);
                let tokens: Vec<u32> = (0..BATCH.iter().product::<usize>() as u32).map(|n| (n + step) % 512).collect();
                Tensor::from_u32(&device, &BATCH, &tokens)?
            };
            model.forward(&tokens, Recompute::Nothing)?.cross_entropy(&tokens)
        })?;
    }

    println!("{}", phases.report());
    println!("{}", lines.report(Path::new(".")));
    println!("{}", profiler.report(SortBy::OwnBytes));
    print_memory(&device, &mut stdout())?;
    match log.and_then(|log| log.take_error()) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}
