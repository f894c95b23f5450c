//! Callbacks around the parts of a training step.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::device::Device;
use crate::operation::OperationObserver;
use crate::tensor::Tensor;

/// A part of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The whole step.
    Step,
    /// The forward pass of one part of the batch.
    Forward,
    /// The backward pass of one part of the batch.
    Backward,
    /// The optimizer's step.
    Optimizer,
}

impl Phase {
    /// Returns the name, which scopes and spans in a recording use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        }
    }
}

/// A callback before and after each phase of a training step, and each layer in a phase.
pub trait Callback {
    /// A phase begins. `step` is the step's number, from 1.
    fn before(&self, phase: Phase, step: u64, device: &Device);

    /// A phase has ended. All of its work is queued, but a GPU may still compute.
    fn after(&self, phase: Phase, step: u64, device: &Device);

    /// A layer begins in the phase that has begun last. `layer` is the path of its modules, such as
    /// `gpt/block3/attention`; layers nest.
    ///
    /// In a backward pass and in the optimizer, consecutive operations of one layer cause one call.
    fn before_layer(&self, layer: &str, step: u64, device: &Device) {
        let _ = (layer, step, device);
    }

    /// A layer has ended.
    fn after_layer(&self, layer: &str, step: u64, device: &Device) {
        let _ = (layer, step, device);
    }

    /// A step has ended. `losses` has the loss of each part of the batch; reading a loss waits for
    /// the GPU.
    fn after_step(&self, losses: &[Tensor], step: u64, device: &Device) {
        let _ = (losses, step, device);
    }
}

thread_local! {
    /// The callbacks of all training steps of this thread.
    static THREAD_CALLBACKS: RefCell<Vec<Rc<dyn Callback>>> = const { RefCell::new(Vec::new()) };
}

/// A guard that keeps a callback registered for the training steps of all trainers on this thread.
/// Dropping it removes the callback.
#[must_use = "the callback is removed when this is dropped"]
pub struct ThreadCallback(Rc<dyn Callback>);

impl ThreadCallback {
    /// Registers `callback` for the steps that begin from now on.
    pub fn add(callback: Rc<dyn Callback>) -> Self {
        THREAD_CALLBACKS.with_borrow_mut(|all| all.push(callback.clone()));
        Self(callback)
    }
}

impl Drop for ThreadCallback {
    fn drop(&mut self) {
        // The list may already be destroyed if the thread is exiting.
        let _ = THREAD_CALLBACKS.try_with(|all| {
            let mut all = all.borrow_mut();
            if let Some(index) = all.iter().position(|callback| Rc::ptr_eq(callback, &self.0)) {
                all.remove(index);
            }
        });
    }
}

/// The callbacks of a trainer and of its thread, and the open layers of the current step.
pub(crate) struct Callbacks {
    device: Device,
    list: RefCell<Vec<Rc<dyn Callback>>>,
    step: Cell<u64>,
    /// The paths of the open layers, the innermost last.
    layers: RefCell<Vec<String>>,
    /// True in a backward pass and in the optimizer, which open and close the layers for every
    /// single operation or parameter.
    opens_each: Cell<bool>,
}

impl Callbacks {
    pub(crate) fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            list: RefCell::default(),
            step: Cell::new(0),
            layers: RefCell::default(),
            opens_each: Cell::new(false),
        }
    }

    /// Adds a callback.
    pub(crate) fn add(&self, callback: Rc<dyn Callback>) {
        self.list.borrow_mut().push(callback);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.borrow().is_empty() && THREAD_CALLBACKS.with_borrow(Vec::is_empty)
    }

    /// Begins a phase of step `step`.
    pub(crate) fn before(&self, phase: Phase, step: u64) {
        if phase == Phase::Step {
            // An error may have ended the last step inside a layer.
            self.layers.borrow_mut().clear();
        }
        self.step.set(step);
        self.opens_each.set(matches!(phase, Phase::Backward | Phase::Optimizer));
        self.call(|callback| callback.before(phase, step, &self.device));
    }

    /// Ends a phase of the current step.
    pub(crate) fn after(&self, phase: Phase) {
        self.open_layers("");
        self.opens_each.set(false);
        self.call(|callback| callback.after(phase, self.step.get(), &self.device));
    }

    /// Calls the callbacks at the end of a step, with the losses of the batch's parts.
    pub(crate) fn after_step(&self, losses: &[Tensor]) {
        self.call(|callback| callback.after_step(losses, self.step.get(), &self.device));
    }

    /// Calls `f` with each callback.
    fn call(&self, f: impl Fn(&dyn Callback)) {
        let mut callbacks = self.list.borrow().clone();
        THREAD_CALLBACKS.with_borrow(|all| callbacks.extend(all.iter().cloned()));
        callbacks.iter().for_each(|callback| f(&**callback));
    }

    /// Ends the open layers that are not part of `path`, and begins the layers of `path` that are
    /// not open.
    fn open_layers(&self, path: &str) {
        loop {
            let ended = self.layers.borrow_mut().pop_if(|layer| !is_part(layer, path));
            let Some(layer) = ended else { break };
            self.call(|callback| callback.after_layer(&layer, self.step.get(), &self.device));
        }
        let open = self.layers.borrow().last().map_or(0, |layer| layer.len() + 1);
        let inner = path.get(open..).unwrap_or_default();
        let ends = inner.match_indices('/').map(|(at, _)| open + at).chain((!inner.is_empty()).then_some(path.len()));
        for end in ends {
            let layer = &path[..end];
            self.layers.borrow_mut().push(layer.to_owned());
            self.call(|callback| callback.before_layer(layer, self.step.get(), &self.device));
        }
    }
}

/// Returns true if `path` is the path of `layer` or of a layer inside it.
fn is_part(layer: &str, path: &str) -> bool {
    path.strip_prefix(layer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl OperationObserver for Callbacks {
    fn module_changed(&self, path: &str) {
        // Where every operation opens and closes its layers, a layer stays open until an operation
        // of another layer runs.
        if !(path.is_empty() && self.opens_each.get()) {
            self.open_layers(path);
        }
    }
}
