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


@functools.cache
def _get_variable():
    """Returns the interpreter's function that reads one variable of a frame."""
    # Not before: an interpreter may lack the module. PyTorch needs it, too.
    import ctypes

    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)
    return prototype(("PyFrame_GetVar", ctypes.pythonapi))
