"""Checks that the library reads call stacks and autograd's operations of this process correctly."""

import sys
import sysconfig
import threading
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
    _check(interpreter, object())
    return interpreter


def checked_autograd(torch, minor):
    """Returns autograd's description for the library; raises RuntimeError if it cannot be read."""
    autograd = _native.Autograd(minor)
    found = []
    # A thread of its own: the numbers of the program's operations stay as they are.
    thread = threading.Thread(target=_check_autograd, args=(torch, autograd, found))
    thread.start()
    thread.join()
    if found != ["equal"]:
        raise RuntimeError(f"the numbers of autograd's operations differ: {found}")
    return autograd


def _check_autograd(torch, autograd, found):
    try:
        x = torch.ones(1, requires_grad=True)
        y = x * 2
        expected = y.grad_fn._sequence_nr()
        numbers = []
        y.register_hook(lambda _: numbers.append(autograd.numbers()[1]))
        following, outside = autograd.numbers()
        y.backward()
        is_equal = (following, outside, numbers) == (expected + 1, None, [expected])
        found.append("equal" if is_equal else (expected, following, outside, numbers))
    except Exception as error:
        found.append(repr(error))


def _check(interpreter, _argument):
    interpreter.check(_frames(sys._getframe()))


def _frames(frame):
    """Returns the frames from ``frame`` outwards as Python reports them."""
    frames = []
    is_innermost = True
    while frame is not None:
        code = frame.f_code
        frames.append((
            id(code),
            None if is_innermost else frame.f_lasti,
            None if is_innermost else frame.f_lineno,
            _first_local(frame),
            _valid(code.co_filename),
            _valid(getattr(code, "co_qualname", code.co_name)),
        ))
        is_innermost = False
        frame = frame.f_back
    return frames


def _first_local(frame):
    """Returns the address of the first argument's value; None if it is unknown."""
    code = frame.f_code
    if code.co_argcount == 0 or code.co_varnames[0] in code.co_cellvars:
        return None
    name = code.co_varnames[0]
    values = frame.f_locals
    return id(values[name]) if name in values else None


def _valid(text):
    """Returns a text; None if it is not valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return None
    return text
