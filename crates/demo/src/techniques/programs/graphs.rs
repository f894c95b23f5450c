//! A program that captures three forward passes of different sizes as CUDA graphs, whose memory is
//! in private pools, and replays them. On the host, a replay runs the forward pass again.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fastrand::Rng;
use vramscope_collector::{Category, MempoolId, Scope, graph_pool_handle};

use super::super::report::Figure;
use super::super::run::{ProgramState, Run, StepScope};
use crate::autograd::no_grad;
use crate::backend::{BackendError, Graph};
use crate::device::Device;
use crate::error::Result;
use crate::models::Perceptron;
use crate::random::normal;
use crate::tensor::Tensor;

/// Index of the stream that is captured. The default stream cannot be captured.
const CAPTURED: usize = 1;

/// A captured forward pass.
struct CapturedGraph {
    graph: Box<dyn Graph>,
    /// The result, in the private pool.
    output: Rc<RefCell<Option<Tensor>>>,
    mempool: MempoolId,
}

impl CapturedGraph {
    /// Captures `model` on `x`, with memory from the private pool `mempool`.
    fn new(device: &Device, model: &Rc<Perceptron>, x: &Tensor, mempool: MempoolId) -> Result<Self> {
        let output = Rc::new(RefCell::new(None));
        let (model, x, result) = (Rc::clone(model), x.clone(), Rc::clone(&output));
        let is_first = Cell::new(true);
        let owned_device = device.clone();
        let work = move || -> Result {
            let device = &owned_device;
            let memory = device.memory();
            // Frees the last result first, so that the next one uses its memory, as in a graph.
            result.replace(None);
            memory.begin_private_pool(mempool, device.stream())?;
            let computed = {
                let _mode = no_grad();
                let _scope = Scope::open_with("graph", Category::Activation);
                model.forward(&x)
            };
            memory.end_private_pool(mempool)?;
            if !is_first.replace(false) {
                memory.release_private_pool(mempool)?;
            }
            result.replace(Some(computed?));
            Ok(())
        };
        let work = Box::new(move || {
            work().map_err(|error| BackendError { call: "capture".to_owned(), reason: error.to_string() })
        });
        let graph = device.with_stream(CAPTURED, || Ok(device.backend().capture(work)?))?;
        Ok(Self { graph, output, mempool })
    }

    /// Replays the forward pass and returns the mean square of its result.
    fn replay(&self, device: &Device) -> Result<f32> {
        device.wait_stream(CAPTURED, 0)?;
        device.with_stream(CAPTURED, || Ok(self.graph.replay()?))?;
        device.wait_stream(0, CAPTURED)?;
        let output = self.output.borrow().as_ref().map(Tensor::to_f32).transpose()?.unwrap_or_default();
        Ok(output.iter().map(|value| value * value).sum::<f32>() / output.len() as f32)
    }
}

/// Captures and replays the graphs. The reported peaks exclude the warm-up.
pub(in super::super) fn run(run: &mut Run<'_>) -> Result<ProgramState> {
    let (device, settings) = (run.device, run.settings);
    let _mode = no_grad();
    let width = settings.row_width;
    let model = Rc::new(settings.perceptron(device)?);
    let mut rng = Rng::with_seed(settings.seed);
    // The largest input comes first: the others then fit into its memory.
    let inputs = [4, 3, 2].map(|quarters| {
        let rows = settings.rows * quarters / 4;
        let _scope = Scope::open_with("data", Category::Input);
        Tensor::from_calls(device, &[rows, width], || normal(&mut rng, 1.0))
    });
    let inputs = inputs.into_iter().collect::<Result<Vec<_>>>()?;
    // Loads kernels before the capture.
    for x in &inputs {
        let _scope = Scope::open_with("warm-up", Category::Activation);
        device.with_stream(CAPTURED, || model.forward(x))?;
    }
    device.synchronize()?;
    device.memory().empty_cache()?;
    device.memory().reset_peaks();
    let before = device.stats().reserved_bytes.all.current;
    let shared = graph_pool_handle();
    let mut graphs = Vec::new();
    for x in &inputs {
        let mempool = if settings.shares_graph_pool { shared } else { graph_pool_handle() };
        graphs.push(CapturedGraph::new(device, &model, x, mempool)?);
    }
    let graph_bytes = device.stats().reserved_bytes.all.current - before;
    run.each_step(|step| {
        let _step = StepScope::begin(device, step);
        // Each result is read before the next graph runs: graphs that share a private pool may
        // overwrite each other's memory.
        graphs.iter().map(|graph| graph.replay(device)).sum()
    })?;
    run.bytes("graph_bytes", graph_bytes);
    let mut mempools: Vec<MempoolId> = graphs.iter().map(|graph| graph.mempool).collect();
    mempools.dedup();
    run.figure("private_pools", Figure::Count(mempools.len() as u64));
    Ok(Box::new((model, inputs, graphs)))
}
