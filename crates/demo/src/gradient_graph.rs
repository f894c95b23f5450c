//! Gradient graphs: the operations that computed a tensor, with their backward passes.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::rc::Rc;

use crate::error::{Result, TensorError};
use crate::gradient_mode::is_grad_enabled;
use crate::operation::{Module, line};

/// A value that a gradient graph computes with. The only implementation is `Tensor`.
pub(crate) trait Value: Clone + 'static {
    /// Returns true if gradients flow to or through the value.
    fn requires_grad(&self) -> bool;

    /// Returns the receiver of the value's gradient; `None` if the value needs no gradient.
    fn edge(&self) -> Option<Edge<Self>>;
}

/// The gradients of an operation's arguments, in their order. `None` for an argument that needs no
/// gradient.
type Gradients<V> = Vec<Option<V>>;

/// The backward pass of one operation: a function from the gradient of the result to the gradients
/// of the arguments. It owns the saved tensors, so that they are freed when it has run.
type Backward<V> = Box<dyn FnOnce(V) -> Result<Gradients<V>>>;

/// The receiver of an argument's gradient.
pub(crate) enum Edge<V> {
    /// The operation that computed the argument.
    Node(Rc<Node<V>>),
    /// The argument itself, a leaf, which accumulates its gradient.
    Leaf(V),
}

impl<V: Clone> Clone for Edge<V> {
    fn clone(&self) -> Self {
        match self {
            Self::Node(node) => Self::Node(Rc::clone(node)),
            Self::Leaf(leaf) => Self::Leaf(leaf.clone()),
        }
    }
}

thread_local! {
    /// The sequence number of the next node.
    static NEXT_SEQUENCE: Cell<u64> = const { Cell::new(0) };
}

/// A node of a gradient graph: a recorded operation that can be differentiated.
pub(crate) struct Node<V> {
    /// Nodes are numbered in the order of their forward calls, so that arguments have smaller
    /// numbers than results.
    sequence: u64,
    operation: &'static str,
    /// Source line of the forward call.
    location: &'static Location<'static>,
    /// Path of the modules that were open in the forward call.
    module: Rc<str>,
    /// The receivers of the arguments' gradients, in the order of [`Gradients`].
    edges: RefCell<Vec<Option<Edge<V>>>>,
    /// The backward pass; `None` after it has run.
    backward: RefCell<Option<Backward<V>>>,
}

impl<V: Value> Node<V> {
    /// Creates the node of `operation` if gradients are recorded and one of `arguments` requires a
    /// gradient; otherwise returns `None`. To create a node, calls `save`, which saves the tensors
    /// that the backward pass needs and returns the backward pass.
    pub(crate) fn record<B>(operation: &'static str, arguments: &[&V], save: impl FnOnce() -> B) -> Option<Rc<Self>>
    where
        B: FnOnce(V) -> Result<Gradients<V>> + 'static,
    {
        if !is_grad_enabled() || !arguments.iter().any(|argument| argument.requires_grad()) {
            return None;
        }
        let sequence = NEXT_SEQUENCE.get();
        NEXT_SEQUENCE.set(sequence + 1);
        Some(Rc::new(Self {
            sequence,
            operation,
            location: line(),
            module: Module::path(),
            edges: RefCell::new(arguments.iter().map(|argument| argument.edge()).collect()),
            backward: RefCell::new(Some(Box::new(save()))),
        }))
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the operation's name.
    pub(crate) fn operation(&self) -> &'static str {
        self.operation
    }

    /// Returns the source line of the forward call.
    pub(crate) fn location(&self) -> &'static Location<'static> {
        self.location
    }

    /// Returns the path of the modules that were open in the forward call.
    pub(crate) fn module(&self) -> &Rc<str> {
        &self.module
    }

    /// Returns the receivers of the arguments' gradients.
    pub(crate) fn edges(&self) -> Vec<Option<Edge<V>>> {
        self.edges.borrow().clone()
    }

    /// Runs the backward pass of this operation and frees its saved tensors.
    ///
    /// # Errors
    /// If the backward pass has run before, a saved tensor was changed in place, or memory or
    /// kernels fail.
    pub(crate) fn run(&self, grad: V) -> Result<Gradients<V>> {
        let backward = self.backward.take().ok_or(TensorError::GraphFreed { operation: self.operation })?;
        backward(grad)
    }
}

impl<V> Drop for Node<V> {
    /// Drops the nodes that only this node refers to, in a loop. Recursive drops would overflow the
    /// stack in a long graph.
    fn drop(&mut self) {
        let mut edges = self.edges.take();
        while let Some(edge) = edges.pop() {
            if let Some(Edge::Node(node)) = edge
                && let Some(node) = Rc::into_inner(node)
            {
                edges.append(&mut node.edges.borrow_mut());
            }
        }
    }
}
