"""Keeps the package's own functions out of ``torch.compile``.

PyTorch's compiler sees every Python function that runs while a compiled function does, and would
try to compile ours, too.
"""

from ._imports import call_after_import
from ._messages import raise_if_of_handler

#: PyTorch's module that decides what is compiled.
TRACE_RULES = "torch._dynamo.trace_rules"

_is_waiting = False


def skip_package():
    """Makes the compiler skip the package, now or once the program imports the compiler."""
    global _is_waiting
    if not _is_waiting:
        call_after_import(TRACE_RULES, _skip)
        _is_waiting = True


def _skip(trace_rules):
    try:
        trace_rules.add(__package__)
    except Exception as error:  # Another version of PyTorch: it compiles functions of ours, without an effect.
        raise_if_of_handler(error)
