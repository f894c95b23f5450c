"""Finds the blocks of tensors, also of tensors that consist of others, such as ``DTensor``."""

import sys

from ._messages import print_message, raise_if_of_handler

#: How deep tensors may consist of tensors, as a ``DTensor`` of quantized tensors does.
MAX_DEPTH = 4

#: Types of tensors without storage of their own. To ask one for its storage raises an error, which
#: takes 50 times as long as an answer.
_wrapper_types = set()
_has_failed = False


def add_blocks(labelled, tensor, scope, depth=MAX_DEPTH):
    """Adds device, address and ``scope`` of a CUDA tensor's block to ``labelled``; of each block if
    the tensor consists of several tensors. A tensor whose block is not found is left out."""
    try:
        if not getattr(tensor, "is_cuda", False):
            return
        if tensor.__class__ not in _wrapper_types:
            address = tensor.untyped_storage().data_ptr()
            if address:
                labelled.append((tensor.device.index or 0, address, scope))
                return
    except Exception as error:
        raise_if_of_handler(error)
        _add_parts(labelled, tensor, scope, depth, error)
    else:
        _add_parts(labelled, tensor, scope, depth, None)


def _add_parts(labelled, tensor, scope, depth, error):
    """Adds the blocks of the tensors that a tensor consists of. ``error`` is why it has no storage:
    None if it is known to have none, or to be empty."""
    try:
        parts = _parts(tensor)
        if parts is None:
            if error is not None:
                _report(tensor, error)
        elif depth > 0:
            for part in parts:
                add_blocks(labelled, part, scope, depth - 1)
    except Exception as error:
        raise_if_of_handler(error)
        _report(tensor, error)


def _parts(tensor):
    """Returns what a tensor consists of; None for a tensor that consists of no others."""
    kind = type(tensor)
    if hasattr(kind, "__tensor_flatten__"):
        _wrapper_types.add(kind)
        return [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
    if getattr(tensor, "is_sparse", False):
        return [tensor._indices(), tensor._values()]
    return None


def _report(tensor, error):
    """Prints the first error, unless it is expected: of what is no tensor, or of a tensor without
    memory, such as a fake one or an uninitialized parameter."""
    global _has_failed
    kind = type(tensor)
    is_tensor = issubclass(kind, sys.modules["torch"].Tensor)
    has_no_memory = hasattr(kind, "materialize") or hasattr(tensor, "fake_mode")
    if is_tensor and not has_no_memory and not _has_failed:
        _has_failed = True
        name = kind.__name__
        print_message(f"some blocks have no category: cannot find the memory of a {name}: {error!r}")
