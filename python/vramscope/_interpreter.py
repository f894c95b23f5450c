"""Checks that the library reads call stacks and autograd's operations of this process correctly."""

import sys
import sysconfig
import types

from . import _native


def checked(torch):
    """Returns the interpreter's description for the library; raises RuntimeError if call stacks
    cannot be read."""
    module_call = getattr(torch.nn.Module, "_wrapped_call_impl", None)
    interpreter = _native.Interpreter(
        sys.hexversion,
        bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        hasattr(sys, "getobjects"),
        id(types.CodeType),
        id(module_call.__code__) if module_call is not None else 0,
    )
    _check(interpreter)
    return interpreter


def check_operations(torch, autograd):
    """Checks the number of an operation of this thread and where its node stores it; raises
    RuntimeError if they cannot be read.

    Call this in a thread of its own, so that the program's operations keep their numbers.
    Nothing runs backward here: that starts autograd's engine, and PyTorch then refuses to run it in
    forked processes.
    """
    operation = _operation(torch)
    # A reference: the node's Python object would otherwise be gone at once.
    node = operation.grad_fn
    expected = node._sequence_nr()
    numbers = autograd.numbers()
    if numbers != (expected + 1, None):
        raise RuntimeError(f"the numbers of autograd's operations differ: {numbers} after {expected}")
    autograd.check_node(id(node), expected)


def check_backward(torch, autograd):
    """Checks the number that a thread has in a backward pass; raises RuntimeError if it cannot be
    read. Call this only after the program's own backward pass, and in a thread of its own.

    Checks nothing in a program with compiled autograd, which compiles the passes of all threads: a
    second thread with one makes the next pass of the program crash (PyTorch 2.11)."""
    if _has_compiled_autograd():
        return
    operation = _operation(torch)
    expected = operation.grad_fn._sequence_nr()
    numbers = []
    operation.register_hook(lambda _: numbers.append(autograd.numbers()[1]))
    operation.backward()
    if numbers != [expected]:
        raise RuntimeError(f"the numbers of autograd's operations differ: {numbers} in the backward pass of {expected}")


def _has_compiled_autograd():
    """Returns True if the program compiles backward passes, now or in compiled functions."""
    modules = sys.modules.get("torch._dynamo.compiled_autograd"), sys.modules.get("torch._dynamo.config")
    names = "compiled_autograd_enabled", "compiled_autograd"
    return any(getattr(module, name, False) for module, name in zip(modules, names))


def _operation(torch):
    """Returns the result of a differentiable operation on the CPU, whatever the defaults of the
    program are."""
    with torch.enable_grad():
        return torch.ones(1, device="cpu", dtype=torch.float32, requires_grad=True) * 2


def _check(interpreter):
    interpreter.check(_frames(sys._getframe(), id(interpreter)))


def _frames(frame, first_local):
    """Returns the frames from ``frame`` outwards as Python reports them. ``first_local`` is the
    address of the first argument of ``frame``. That of others is not read: see `_frames.py`."""
    frames = []
    is_innermost = True
    while frame is not None:
        code = frame.f_code
        frames.append((
            id(code),
            None if is_innermost else frame.f_lasti,
            None if is_innermost else frame.f_lineno,
            first_local if is_innermost else None,
            _valid(code.co_filename),
            _valid(getattr(code, "co_qualname", code.co_name)),
        ))
        is_innermost = False
        frame = frame.f_back
    return frames


def _valid(text):
    """Returns a text; None if it is not valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text
