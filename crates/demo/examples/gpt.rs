//! Trains a GPT on the host or a GPU, to compare speed, memory and losses with PyTorch.
//!
//! `gpt --write FOLDER` writes the initial weights (`weights.safetensors`) and the training tokens
//! (`tokens.bin`, 16-bit little-endian, `[step, sequence, length + 1]`) that
//! `examples/pytorch/compare_gpt.py` trains with. Prints one JSON object: the loss of each step,
//! the median time of a step, and the peaks. `--record FILE` records the run and serves it live.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Instant;

use fastrand::Rng;
use safetensors::tensor::{Dtype, TensorView};
use vramscope_collector::{HostDevice, MemoryDevice, Monitor, Settings};
use vramscope_demo::models::{Gpt, GptConfig, Recompute};
use vramscope_demo::optimizers::{Adam, Method, Optimizer};
use vramscope_demo::training::{StepOptions, Trainer};
use vramscope_demo::{DType, Device, Tensor};
use vramscope_trace::{Category, NullSink};

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// Number of training steps before the first one whose time is measured.
const WARM_UP: usize = 5;

struct Arguments {
    cuda: bool,
    precision: String,
    steps: usize,
    batch: usize,
    config: GptConfig,
    write: Option<PathBuf>,
    record: Option<PathBuf>,
}

impl Arguments {
    /// Reads the command line's `--name value` pairs.
    fn parse() -> Result<Self> {
        let mut given: HashMap<String, String> = HashMap::new();
        let mut words = std::env::args().skip(1);
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| format!("{name} needs a value"))?;
            given.insert(name, value);
        }
        let mut text = |name: &str, default: &str| given.remove(name).unwrap_or_else(|| default.to_owned());
        let parsed = Self {
            cuda: text("--device", "host") == "cuda",
            precision: text("--precision", "fp32"),
            steps: text("--steps", "50").parse()?,
            batch: text("--batch", "8").parse()?,
            config: GptConfig {
                vocabulary: text("--vocabulary", "8192").parse()?,
                layers: text("--layers", "8").parse()?,
                width: text("--width", "512").parse()?,
                heads: text("--heads", "8").parse()?,
                length: text("--length", "512").parse()?,
            },
            write: Some(text("--write", "")).filter(|path| !path.is_empty()).map(PathBuf::from),
            record: Some(text("--record", "")).filter(|path| !path.is_empty()).map(PathBuf::from),
        };
        match given.keys().next() {
            Some(unknown) => Err(format!("unknown option {unknown}").into()),
            None => Ok(parsed),
        }
    }
}

fn main() -> Result {
    let arguments = Arguments::parse()?;
    if arguments.cuda {
        return on_cuda(&arguments);
    }
    let host = HostDevice::new(16 << 30);
    let (monitor, pool) = pool(host, &arguments)?;
    let device = Device::host(pool)?;
    train(&arguments, &device, monitor)
}

#[cfg(feature = "cuda")]
fn on_cuda(arguments: &Arguments) -> Result {
    let context = cudarc::driver::CudaContext::new(0)?;
    let (monitor, pool) = pool(vramscope_collector::CudaDevice::from_context(&context)?, arguments)?;
    let device = Device::cuda(Box::new(pool), &context)?;
    train(arguments, &device, monitor)
}

#[cfg(not(feature = "cuda"))]
fn on_cuda(_: &Arguments) -> Result {
    Err("this build has no support for GPUs".into())
}

type RecordedPool<D> = (Option<Monitor>, vramscope_collector::DevicePool<D>);

/// Creates the pool of `device`. With `--record`, a monitor records it and serves its page.
fn pool<D: MemoryDevice>(device: D, arguments: &Arguments) -> Result<RecordedPool<D>> {
    let Some(path) = &arguments.record else {
        return Ok((None, vramscope_collector::DevicePool::new(device, Settings::default(), NullSink, || 0)));
    };
    let builder = Monitor::builder(device).program("gpt").record(path);
    let (monitor, pool) = builder.listen(SocketAddr::from(([127, 0, 0, 1], 0))).start()?;
    eprintln!("listening: {}", monitor.url().unwrap_or_default());
    Ok((Some(monitor), pool))
}

/// Draws the random tokens of all training steps. Nine in ten tokens are determined by the token
/// before them, so that the loss falls steadily. A sudden fall would come at a step that depends on
/// rounding, and the losses could not be compared with PyTorch's.
fn tokens(arguments: &Arguments) -> Vec<u32> {
    let vocabulary = arguments.config.vocabulary as u32;
    let mut rng = Rng::with_seed(7);
    let sequences = arguments.steps * arguments.batch;
    let mut all = Vec::with_capacity(sequences * (arguments.config.length + 1));
    for _ in 0..sequences {
        let mut token = rng.u32(..vocabulary);
        for _ in 0..=arguments.config.length {
            all.push(token);
            token = if rng.u8(..) < 26 { rng.u32(..vocabulary) } else { (5 * token + 3) % vocabulary };
        }
    }
    all
}

fn train(arguments: &Arguments, device: &Device, monitor: Option<Monitor>) -> Result {
    let &Arguments { config, batch, steps, .. } = arguments;
    let precision = match arguments.precision.as_str() {
        "fp32" => DType::F32,
        "tf32" => {
            device.allow_tf32(true)?;
            DType::F32
        }
        "bf16" => DType::Bf16,
        other => return Err(format!("unknown precision {other}: fp32, tf32 or bf16").into()),
    };
    let model = Gpt::new(device, config, 1)?;
    let tokens = tokens(arguments);
    if let Some(folder) = &arguments.write {
        write_inputs(folder, &model, &tokens)?;
    }
    let method = Method::Adam(Adam { beta2: 0.95, weight_decay: 0.1, ..Adam::default() });
    let options = StepOptions { precision, ..StepOptions::default() };
    let mut trainer = Trainer::new(device, model.parameters(), Optimizer::new(method, 3e-4), options)?;
    let (mut losses, mut times) = (Vec::new(), Vec::new());
    for (step, tokens) in tokens.chunks_exact(batch * (config.length + 1)).enumerate() {
        if step == WARM_UP {
            device.synchronize()?;
            device.memory().reset_peaks();
        }
        let start = Instant::now();
        let (inputs, targets): (Vec<u32>, Vec<u32>) = tokens
            .chunks_exact(config.length + 1)
            .flat_map(|row| row.windows(2).map(|pair| (pair[0], pair[1])))
            .unzip();
        let category = vramscope_collector::Scope::open_with("batch", Category::Input);
        let inputs = Tensor::from_u32(device, &[batch, config.length], &inputs)?;
        let targets = Tensor::from_u32(device, &[batch * config.length], &targets)?;
        drop(category);
        let loss = trainer.step(|_| model.forward(&inputs, Recompute::Nothing)?.cross_entropy(&targets))?;
        device.synchronize()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
        losses.push(loss[0].item()?);
    }
    let stats = device.stats();
    let mut measured: Vec<f64> = times.iter().skip(WARM_UP.min(steps - 1)).copied().collect();
    measured.sort_by(f64::total_cmp);
    let recording = monitor.map(|monitor| {
        let summary = monitor.stop();
        serde_json::json!({"events": summary.events, "bytes": summary.bytes, "lost_events": summary.lost_events})
    });
    println!(
        "{}",
        serde_json::json!({
            "precision": arguments.precision,
            "losses": losses,
            "step_ms": measured[measured.len() / 2],
            "peak_allocated_bytes": stats.allocated_bytes.all.peak,
            "peak_requested_bytes": stats.requested_bytes.all.peak,
            "peak_reserved_bytes": stats.reserved_bytes.all.peak,
            "allocated_bytes": stats.allocated_bytes.all.current,
            "reserved_bytes": stats.reserved_bytes.all.current,
            "total_allocated_bytes": stats.allocated_bytes.all.allocated,
            "allocations": stats.allocation.all.allocated,
            "recording": recording,
        })
    );
    Ok(())
}

/// Writes the initial weights and the tokens to `folder`, for `examples/pytorch/compare_gpt.py`.
fn write_inputs(folder: &std::path::Path, model: &Gpt, tokens: &[u32]) -> Result {
    std::fs::create_dir_all(folder)?;
    let parameters = model.parameters();
    let bytes: Vec<Vec<u8>> =
        parameters.iter().map(|parameter| parameter.value.to_bytes()).collect::<Result<_, _>>()?;
    let views = parameters.iter().zip(&bytes).map(|(parameter, bytes)| {
        let view = TensorView::new(Dtype::F32, parameter.value.shape().to_vec(), bytes)?;
        Ok((parameter.name.clone(), view))
    });
    let views: Vec<(String, TensorView<'_>)> = views.collect::<Result<_>>()?;
    safetensors::serialize_to_file(views, None, &folder.join("weights.safetensors"))?;
    let tokens: Vec<u8> = tokens.iter().flat_map(|&token| (token as u16).to_le_bytes()).collect();
    std::fs::write(folder.join("tokens.bin"), tokens)?;
    Ok(())
}
