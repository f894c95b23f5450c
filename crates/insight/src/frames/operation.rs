//! Finds the operation that a stack frame runs, such as `linear` or `aten::mm`, by the rules in
//! [`group`](crate::group).

use vramscope_trace::{backward_node, short_file_name};

/// Beginning of the names of the functions of PyTorch's dispatcher: `at::_ops::mm::call`.
const DISPATCHER: &str = "at::_ops::";
/// Ends of the names of overloads, which are not part of an operation's name.
const OVERLOADS: [&str; 7] = ["_out", "_memory_format", "_dim", "_int", "_dtype_layout", "_dtype", "_device"];

/// How a frame names an operation. The later of these kinds take precedence: in a stack, only
/// frames of the last kind that occurs count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OperationSource {
    /// Names none.
    #[default]
    None,
    /// A Python function of the program, used if no frame names an operation.
    Program,
    /// A Python function of PyTorch.
    Python,
    /// A function of PyTorch's dispatcher, or a node of its backward pass.
    Dispatcher,
    /// A frame without a file: a name that the program recorded.
    Named,
}

/// Returns how a frame of C++ or without a file names an operation.
pub(super) fn native_source(function: &str, path: &str) -> OperationSource {
    match () {
        () if dispatched_name(function).is_some() => OperationSource::Dispatcher,
        () if path.is_empty() && !function.is_empty() && !is_native_name(function) => OperationSource::Named,
        () => OperationSource::None,
    }
}

/// Returns true if a name is that of a C++ function, or of a library and an address.
pub(super) fn is_native_name(function: &str) -> bool {
    function.contains("::") || function.contains(['(', '+'])
}

/// Returns how a Python frame names an operation; `path` has no backslashes.
pub(super) fn python_source(path: &str, is_own: bool) -> OperationSource {
    let is_in = |parts: &[&str]| parts.iter().any(|part| path.contains(part));
    match () {
        () if is_own => OperationSource::Program,
        // The functions that call modules and optimizers are no operations.
        () if is_in(&["modules/module.py", "modules/container.py", "torch/nn/parallel/", "optim/optimizer.py"]) => {
            OperationSource::None
        }
        () if is_in(&["torch/nn/", "torch/optim/", "torch/functional.py", "torch/_tensor.py"]) => {
            OperationSource::Python
        }
        () => OperationSource::None,
    }
}

/// Returns the name of the operation that a frame of the dispatcher or of the backward pass runs:
/// `mm`, `MmBackward0`. `None` for any other function.
fn dispatched_name(function: &str) -> Option<&str> {
    let Some(rest) = function.strip_prefix(DISPATCHER) else { return backward_node(function) };
    let (name, called) = rest.split_once("::")?;
    ["call", "redispatch"].iter().any(|end| called.starts_with(end)).then_some(name)
}

/// Returns the name of the operation that a frame runs, as PyTorch's profiler would call it:
/// `aten::mm` for `at::_ops::mm::call`, `linear` for a function of `torch/nn/functional.py`. `None`
/// if the frame's function and file are the best name.
pub(crate) fn operation_name(function: &str, path: &str) -> Option<String> {
    if let Some(name) = dispatched_name(function) {
        return Some(if function.starts_with(DISPATCHER) {
            format!("aten::{}", without_overload(name))
        } else {
            name.to_owned()
        });
    }
    let path = &*path.replace('\\', "/");
    if python_source(path, false) != OperationSource::Python {
        return None;
    }
    let file = short_file_name(path);
    Some(if function.contains('.') || file == "functional.py" {
        function.to_owned()
    } else {
        format!("{}.{}", file.trim_end_matches(".py"), unqualified(function))
    })
}

/// Returns an operation's name without that of its overload: `add` for `add_Tensor`, `sum` for
/// `sum_dim_IntList`.
fn without_overload(name: &str) -> &str {
    let is_overload = |&(at, _): &(usize, &str)| at > 0 && name[at + 1..].starts_with(|c: char| c.is_ascii_uppercase());
    let mut name = name.match_indices('_').find(is_overload).map_or(name, |(at, _)| &name[..at]);
    for end in OVERLOADS {
        name = name.strip_suffix(end).filter(|name| !name.is_empty()).unwrap_or(name);
    }
    name
}

/// Returns a function's name without its class: PyTorch's recordings have `_call_impl`, recordings
/// of vramscope's hook have `Module._call_impl`.
#[inline(never)] // Smaller code: the page is downloaded.
pub(super) fn unqualified(function: &str) -> &str {
    function.rsplit_once('.').map_or(function, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_the_names_of_the_profiler() {
        for (function, expected) in [
            ("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "aten::mm"),
            ("at::_ops::add_Tensor::redispatch(c10::DispatchKeySet)", "aten::add"),
            ("at::_ops::sum_dim_IntList::call(at::Tensor const&)", "aten::sum"),
            ("at::_ops::empty_memory_format::call()", "aten::empty"),
            ("at::_ops::to_dtype_layout::call()", "aten::to"),
            ("at::_ops::_softmax_backward_data::call()", "aten::_softmax_backward_data"),
            ("at::_ops::_foreach_mul__Scalar::call()", "aten::_foreach_mul_"),
            ("torch::autograd::generated::MmBackward0::apply(X&&)", "MmBackward0"),
        ] {
            assert_eq!(operation_name(function, "??").as_deref(), Some(expected));
            assert_eq!(native_source(function, ""), OperationSource::Dispatcher);
        }
        for function in ["at::_ops::mm::schema", "at::native::mm()", "main", "at::_ops::"] {
            assert_eq!(operation_name(function, ""), None, "{function}");
        }
    }

    #[test]
    fn python_functions_of_pytorch_are_operations() {
        for (function, path, expected) in [
            ("linear", "site-packages/torch/nn/functional.py", Some("linear")),
            ("einsum", "C:\\site-packages\\torch\\functional.py", Some("einsum")),
            ("forward", "site-packages/torch/nn/modules/linear.py", Some("linear.forward")),
            ("Linear.forward", "site-packages/torch/nn/modules/linear.py", Some("Linear.forward")),
            ("_init_group", "site-packages/torch/optim/adam.py", Some("adam._init_group")),
            ("_call_impl", "site-packages/torch/nn/modules/module.py", None),
            ("wrapper", "site-packages/torch/optim/optimizer.py", None),
            ("main", "train.py", None),
        ] {
            assert_eq!(operation_name(function, path).as_deref(), expected);
        }
    }

    #[test]
    fn only_plain_names_without_a_file_are_named_operations() {
        for (function, path, expected) in [
            ("matmul", "", OperationSource::Named),
            ("", "", OperationSource::None),
            ("main", "src/main.rs", OperationSource::None),
            ("__clone", "??", OperationSource::None),
            ("at::empty(long)", "", OperationSource::None),
            ("libcuda.so+0x12", "", OperationSource::None),
        ] {
            assert_eq!(native_source(function, path), expected, "{function}");
        }
    }
}
