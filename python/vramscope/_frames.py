"""Reads variables of functions that run.

Before Python 3.13, ``frame.f_locals`` copies all variables into a dictionary that lives as long as
the frame: a tensor that the function deletes would live on, and its memory with it.
"""

import functools
import sys


def variable(frame, name):
    """Returns the value of a function's variable; raises an error if it has none.

    On Python 3.10 and 3.11, which only have ``f_locals``, call this only for a function that
    deletes none of its variables."""
    if sys.version_info[:2] == (3, 12):
        return _get_variable()(frame, name)
    return frame.f_locals[name]


def program_frames():
    """Returns the program's functions that run in this thread, innermost first: the address of each
    frame, and its depth. A frame that does not run any more may have the address of one that does,
    but hardly with its depth, too."""
    frame, addresses = sys._getframe(1), []
    while frame is not None:
        if frame.f_globals.get("__package__") != __package__:
            addresses.append(id(frame))
        frame = frame.f_back
    return [(address, len(addresses) - index) for index, address in enumerate(addresses)]


@functools.cache
def _get_variable():
    """Returns the interpreter's function that reads one variable of a frame."""
    # Not before: an interpreter may lack the module. PyTorch needs it, too.
    import ctypes

    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)
    return prototype(("PyFrame_GetVar", ctypes.pythonapi))
