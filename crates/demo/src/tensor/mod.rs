//! Tensors: elements in a device's memory, with a shape and optionally a gradient graph.
//!
//! A [`Tensor`] is a handle; clones share memory, gradient and gradient graph. Tensors are
//! contiguous, in row-major order. Memory is freed when its last handle is dropped, including the
//! handles that a gradient graph has saved for the backward pass.

mod create;
mod read;
mod storage;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;

use crate::backend::RawSlice;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Result, TensorError};
use crate::gradient_graph::{Edge, Node, Value};
use crate::gradient_mode::is_grad_enabled;
use crate::operation::Operation;

pub(crate) use create::checked_len;
pub(crate) use storage::Storage;

/// A contiguous tensor of any number of dimensions, in a [`Device`]'s memory.
///
/// Clones are handles of one tensor: they share memory, gradient and gradient graph. The memory is
/// freed when the last handle is dropped, including the handles that a gradient graph keeps for the
/// backward pass.
///
/// In the documentation, *rows* extend over the last dimension: a tensor `[2, 3, 4]` has 6 rows of
/// 4 elements.
#[derive(Clone)]
pub struct Tensor(Rc<TensorState>);

/// The state of a tensor, shared by its clones.
struct TensorState {
    storage: Rc<Storage>,
    /// Index of the first element in the storage.
    offset: usize,
    shape: Vec<usize>,
    dtype: DType,
    /// True for a leaf, such as a parameter, that receives gradients.
    requires_grad: Cell<bool>,
    /// The gradient of a leaf.
    grad: RefCell<Option<Tensor>>,
    /// The node of the operation that computed the tensor; `None` if it needs no backward pass.
    node: Option<Rc<Node<Tensor>>>,
}

impl Tensor {
    /// Creates a tensor without a gradient graph. `offset` is the first element's index in the
    /// storage.
    pub(crate) fn from_storage(storage: Rc<Storage>, offset: usize, shape: Vec<usize>, dtype: DType) -> Self {
        Self::with_node(storage, offset, shape, dtype, None)
    }

    fn with_node(
        storage: Rc<Storage>,
        offset: usize,
        shape: Vec<usize>,
        dtype: DType,
        node: Option<Rc<Node<Self>>>,
    ) -> Self {
        let (requires_grad, grad) = (Cell::new(false), RefCell::new(None));
        Self(Rc::new(TensorState { storage, offset, shape, dtype, requires_grad, grad, node }))
    }

    /// Returns a tensor in this memory whose gradient graph ends with `node`; `None` for no graph.
    pub(crate) fn with_history(&self, node: Option<Rc<Node<Self>>>) -> Self {
        Self::with_node(Rc::clone(&self.0.storage), self.0.offset, self.0.shape.clone(), self.0.dtype, node)
    }

    /// Returns a tensor in this memory with another shape of equally many elements, without a
    /// gradient graph.
    pub(crate) fn with_shape(&self, shape: Vec<usize>) -> Self {
        Self::from_storage(Rc::clone(&self.0.storage), self.0.offset, shape, self.0.dtype)
    }

    /// Returns the part of `len` indices from `start` on in the first dimension, in this memory,
    /// without a gradient graph.
    pub(crate) fn part(&self, start: usize, len: usize) -> Self {
        let row: usize = self.0.shape[1..].iter().product();
        let shape = [&[len], &self.0.shape[1..]].concat();
        Self::from_storage(Rc::clone(&self.0.storage), self.0.offset + start * row, shape, self.0.dtype)
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Device {
        self.0.storage.device()
    }

    /// Returns the size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.shape.iter().product()
    }

    /// Returns true if there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of the last dimension; 1 for a tensor without dimensions.
    pub(crate) fn columns(&self) -> usize {
        self.0.shape.last().copied().unwrap_or(1)
    }

    /// Returns the product of all dimensions but the last.
    pub(crate) fn rows(&self) -> usize {
        self.0.shape.split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len() * self.0.dtype.bytes()
    }

    /// Returns the address of the first element in the device's memory; 0 for a tensor without
    /// elements, and while the elements are moved to the host.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.0.storage.address() + (self.0.offset * self.0.dtype.bytes()) as u64
    }

    /// Returns the memory as a slice for kernels.
    ///
    /// # Panics
    /// If the elements are on the host.
    pub(crate) fn raw(&self) -> RawSlice<'_> {
        assert!(
            self.is_empty() || self.0.storage.address() != 0,
            "the tensor is on the host: call move_to_device first"
        );
        // SAFETY: The storage is memory of the tensor's device and lives as long as `self`; it is
        // aligned to 256 bytes, and the offset is a whole number of elements within it. Tensors
        // stay on one thread (`Rc`), and kernels run in the order of the device's streams; a use on
        // several streams is ordered by the program (`wait_stream`, `record_stream`).
        unsafe { RawSlice::new(self.address(), self.len(), self.0.dtype) }
    }

    /// Returns the memory.
    pub(crate) fn storage(&self) -> &Rc<Storage> {
        &self.0.storage
    }

    /// Moves the elements to the host and frees the tensor's memory on the device. Other tensors in
    /// this memory move, too. Operations on them panic until
    /// [`move_to_device`](Self::move_to_device).
    ///
    /// # Errors
    /// If the copy fails.
    pub fn move_to_host(&self) -> Result {
        self.0.storage.move_to_host()
    }

    /// Moves the elements from the host back to the device, to new memory. Does nothing if they are
    /// on the device.
    ///
    /// # Errors
    /// If the memory cannot be allocated or written.
    #[track_caller]
    pub fn move_to_device(&self) -> Result {
        let _operation = Operation::enter("move_to_device");
        self.0.storage.move_to_device()
    }

    /// Returns true if no other tensor or gradient graph uses this memory, so that it can be reused
    /// for a result.
    pub(crate) fn is_unique(&self) -> bool {
        Rc::strong_count(&self.0) == 1 && Rc::strong_count(&self.0.storage) == 1
    }

    /// Returns true if gradients flow to or through this tensor.
    #[must_use]
    pub fn requires_grad(&self) -> bool {
        self.0.requires_grad.get() || self.0.node.is_some()
    }

    /// Makes this tensor a leaf that receives gradients, and returns it.
    ///
    /// # Panics
    /// If the elements are integers.
    #[must_use]
    pub fn with_grad(self) -> Self {
        assert!(self.0.dtype.is_float(), "only floating-point tensors can have gradients");
        self.0.requires_grad.set(true);
        self
    }

    /// Returns the gradient that backward passes have accumulated. Only leaves have a gradient.
    #[must_use]
    pub fn grad(&self) -> Option<Self> {
        self.0.grad.borrow().clone()
    }

    /// Removes the gradient and returns it.
    pub fn take_grad(&self) -> Option<Self> {
        self.0.grad.take()
    }

    /// Replaces the gradient.
    pub(crate) fn set_grad(&self, grad: Option<Self>) {
        self.0.grad.replace(grad);
    }

    /// Returns a tensor in this memory that has no gradient graph and needs no gradient.
    #[must_use]
    pub fn detach(&self) -> Self {
        self.with_history(None)
    }

    /// Prepares a change of the elements in place: increments the version of this memory, so that a
    /// backward pass that has saved it returns an error.
    ///
    /// # Errors
    /// If the tensor is a leaf that requires a gradient while gradients are recorded.
    pub(crate) fn change_in_place(&self, operation: &'static str) -> Result {
        if is_grad_enabled() && self.0.requires_grad.get() {
            return Err(TensorError::InPlaceOnLeaf { operation });
        }
        self.0.storage.bump_version();
        Ok(())
    }

    /// Records that work on stream `index` uses the tensor, like `torch.Tensor.record_stream`. When
    /// the tensor is freed, its memory is not reused before the work queued on that stream until
    /// then has ended.
    ///
    /// # Errors
    /// If the stream or the allocator fails.
    pub fn record_stream(&self, index: usize) -> Result {
        let stream = self.device().stream_number(index)?;
        match self.0.storage.address() {
            // A tensor without bytes, or with its bytes on the host, has no memory on the device.
            0 => Ok(()),
            address => self.device().memory().record_stream(address, stream),
        }
    }
}

impl Value for Tensor {
    fn requires_grad(&self) -> bool {
        self.requires_grad()
    }

    fn edge(&self) -> Option<Edge<Self>> {
        match &self.0.node {
            Some(node) => Some(Edge::Node(Rc::clone(node))),
            None => self.0.requires_grad.get().then(|| Edge::Leaf(self.clone())),
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(state) = self;
        f.debug_struct("Tensor")
            .field("shape", &state.shape)
            .field("dtype", &state.dtype)
            .field("address", &format_args!("{:#x}", self.address()))
            .finish_non_exhaustive()
    }
}
