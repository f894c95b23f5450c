//! The backward pass: runs the nodes of a gradient graph from the result to the leaves.

use std::collections::BTreeMap;
use std::rc::Rc;

use vramscope_collector::{Category, Scope};

use crate::error::{Result, TensorError};
use crate::gradient_graph::{Edge, Node, Value};
use crate::gradient_mode::no_grad;
use crate::operation::{Module, Operation};
use crate::tensor::Tensor;

/// The graph nodes that wait to run, each with its gradient, by the node's sequence number.
type Ready = BTreeMap<u64, (Rc<Node<Tensor>>, Tensor)>;

impl Tensor {
    /// Computes the gradients of this tensor, which must have exactly one element, with respect to
    /// all leaves that it depends on, and adds them to the leaves' gradients. Frees the graph.
    ///
    /// # Errors
    /// If the tensor has no graph or its graph was freed, if a tensor that the graph needs was
    /// changed in place, if an allocation fails, or if a kernel fails.
    #[track_caller]
    pub fn backward(&self) -> Result {
        let _operation = Operation::enter("backward");
        let seed = {
            let _category = Scope::of(Category::Gradient);
            Self::full(self.device(), self.shape(), self.dtype(), 1.0)?
        };
        self.backward_with(seed)
    }

    /// Computes gradients as [`backward`](Self::backward), beginning with `grad` as the gradient of
    /// this tensor.
    pub(crate) fn backward_with(&self, grad: Self) -> Result {
        let _mode = no_grad();
        let mut ready = Ready::new();
        match self.edge() {
            Some(edge) => deliver(&mut ready, edge, grad)?,
            None => return Err(TensorError::NoGraph),
        }
        // A result's node has a larger sequence number than its arguments' nodes, so the waiting
        // node with the largest one has received all parts of its gradient.
        while let Some((_, (node, grad))) = ready.pop_last() {
            let _module = Module::enter_path(node.module());
            let _category = Scope::of(Category::Gradient);
            let name = format!("{}_backward", node.operation());
            let _operation = Operation::enter_at(&name, node.location());
            let edges = node.edges();
            let gradients = node.run(grad)?;
            drop(node);
            for (edge, grad) in edges.into_iter().zip(gradients) {
                if let (Some(edge), Some(grad)) = (edge, grad) {
                    deliver(&mut ready, edge, grad)?;
                }
            }
        }
        Ok(())
    }
}

/// Adds `grad` to the gradient of the tensor that `edge` leads to: a leaf, or a node in `ready`.
fn deliver(ready: &mut Ready, edge: Edge<Tensor>, grad: Tensor) -> Result {
    match edge {
        Edge::Node(node) => {
            let grad = match ready.remove(&node.sequence()) {
                Some((_, present)) => sum(present, grad)?,
                None => grad,
            };
            ready.insert(node.sequence(), (node, grad));
        }
        Edge::Leaf(leaf) => {
            let grad = match leaf.take_grad() {
                // A gradient that is kept from step to step is changed in place, as in PyTorch.
                Some(present) => {
                    present.add_assign(&grad)?;
                    present
                }
                None if grad.is_unique() => grad,
                None => grad.copied()?,
            };
            leaf.set_grad(Some(grad));
        }
    }
    Ok(())
}

/// Adds two parts of a gradient. The sum reuses the memory of a part that nothing else uses.
fn sum(present: Tensor, grad: Tensor) -> Result<Tensor> {
    match (present.is_unique(), grad.is_unique()) {
        (true, _) if present.dtype() == grad.dtype() => {
            present.add_assign(&grad)?;
            Ok(present)
        }
        (_, true) if present.dtype() == grad.dtype() => {
            grad.add_assign(&present)?;
            Ok(grad)
        }
        _ => present.add(&grad),
    }
}
