//! Activation checkpointing: forgets what a part of a model computed, and computes it again in the
//! backward pass.

use vramscope_collector::{Category, Scope};

use super::{Node, Saved, enable_grad, is_grad_enabled, no_grad};
use crate::autocast::{autocast_type, set_autocast};
use crate::error::{Result, arguments};
use crate::operation::{Line, Operation};
use crate::tensor::Tensor;

/// Computes `part(x)` and saves only `x`. The backward pass computes `part(x)` again, like
/// `torch.utils.checkpoint.checkpoint` with `use_reentrant=True`.
///
/// `part` must compute equal results each time. Gradients of the parameters that it uses are added
/// to them in the backward pass.
///
/// # Errors
/// The errors of `part`. Also if gradients are recorded and `x` requires no gradient, because then
/// the parameters in `part` would get no gradients.
#[track_caller]
pub fn checkpoint(x: &Tensor, part: impl Fn(&Tensor) -> Result<Tensor> + 'static) -> Result<Tensor> {
    if is_grad_enabled() && !x.requires_grad() {
        let reason = "the input requires no gradient, so the parameters inside would get none: \
                      checkpoint a later part, or use no_grad";
        return Err(arguments("checkpoint", reason));
    }
    let y = {
        let _mode = no_grad();
        part(x)?
    };
    let _operation = Operation::enter("checkpoint");
    let node = Node::record("checkpoint", &[x], || {
        let (saved, precision) = (Saved::new(x), autocast_type());
        move |dy: Tensor| {
            let x = saved.unpack("checkpoint")?.with_grad();
            let y = {
                let _mode = enable_grad();
                let _autocast = set_autocast(precision);
                let _recompute = Scope::open_with("recompute", Category::Activation);
                let _line = Line::of_callers();
                part(&x)?
            };
            y.backward_with(dy)?;
            drop(y);
            Ok(vec![x.take_grad()])
        }
    });
    Ok(y.with_history(node))
}
