"""Calls functions when PyTorch initializes CUDA.

PyTorch keeps such calls in a queue with a lock that is not reentrant. Any thread may hold it when
the process is forked, and a signal handler may interrupt the thread that holds it. So a forked
child asks for nothing, since its queue is a copy of its parent's, and a handler does not wait.
"""

import os
import sys

from ._call_lock import BusyError

#: By name: the functions to call.
_functions = {}
#: The module ``torch.cuda`` that calls ``_call_all``, and the process that has asked for it.
_asked = None, None


def call_when_initialized(cuda, name, function):
    """Calls a function when PyTorch initializes CUDA, now if it has. It replaces an earlier
    function with its name. If it raises an error, PyTorch calls it again when it next tries to
    initialize CUDA. Raises ``BusyError`` in a signal handler that has interrupted the
    initialization."""
    global _asked
    _functions[name] = function
    asked, process = _asked
    if cuda.is_initialized():
        _call(name, function)
    elif asked is not cuda or process == os.getpid():
        if _is_queue_locked_here(cuda):
            raise BusyError("a signal handler has interrupted the initialization of CUDA: make this call after it")
        # Each time: in the middle of an initialization, the earlier request may have had its call.
        cuda._lazy_call(_call_all)
        _asked = cuda, os.getpid()


def forget(name, function):
    """Does not call a function of ``call_when_initialized`` any more. A later one with its name is
    called."""
    # Methods are equal, but not identical.
    if _functions.get(name) == function:
        _functions.pop(name, None)


def _call_all():
    for name, function in list(_functions.items()):
        _call(name, function)


def _call(name, function):
    function()
    if _functions.get(name) is function:
        del _functions[name]


def _is_queue_locked_here(cuda):
    """Returns True if this thread is in a function of PyTorch that holds the lock."""
    functions = getattr(cuda, "_lazy_init", None), getattr(cuda, "_lazy_call", None)
    codes = [code for code in (getattr(function, "__code__", None) for function in functions) if code is not None]
    frame = sys._getframe(1)
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None
