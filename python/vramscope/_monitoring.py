"""Observes functions of PyTorch through the interpreter: ``sys.monitoring``, from Python 3.12 on.

Observing a function replaces nothing of PyTorch: ``torch.jit.script``, ``torch.export``, copies and
pickles have equal results with and without it.
"""

import sys

from ._messages import raise_if_of_handler

#: The name that debuggers and profilers see.
TOOL_NAME = "vramscope"
#: Numbers of tools that Python leaves to any program.
FREE_TOOLS = (3, 4)

_tool = None
#: By address: a code object, and the functions to call when it starts, returns, and ends by an
#: exception. Not by value: functions that are defined again have equal code objects.
_observers = {}
#: The addresses of the code objects whose errors are observed.
_raising = set()


class Observation:
    """The calls of a Python function, which are reported until ``end``.

    ``started(frame)``, ``returned(frame)`` and ``raised(frame)`` get the function's frame; the last
    two may be None. Errors in them are ignored.
    """

    def __init__(self, function, started, returned=None, raised=None):
        self._code = function.__code__
        _observers[id(self._code)] = self._code, started, returned, raised
        events = sys.monitoring.events
        _set_events(self._code, events.PY_START | (events.PY_RETURN if returned else 0), raised is not None)

    def end(self):
        """Ends to observe."""
        if _observers.pop(id(self._code), None) is not None:
            _set_events(self._code, sys.monitoring.events.NO_EVENTS, False)


def is_available():
    """Returns True if this interpreter can observe functions and other tools leave room for one."""
    global _tool
    monitoring = getattr(sys, "monitoring", None)
    if _tool is None and monitoring is not None:
        _tool = next((tool for tool in FREE_TOOLS if monitoring.get_tool(tool) is None), None)
        if _tool is not None:
            _register(monitoring)
    return _tool is not None


def _register(monitoring):
    monitoring.use_tool_id(_tool, TOOL_NAME)
    events = monitoring.events
    for index, event in enumerate((events.PY_START, events.PY_RETURN, events.PY_UNWIND), 1):
        monitoring.register_callback(_tool, event, _callback(index))


def _callback(index):
    def report(code, *_):
        observers = _observers.get(id(code))
        observer = observers and observers[index]
        if observer is not None:
            try:
                observer(sys._getframe(1))
            except Exception as error:  # The program must not notice.
                raise_if_of_handler(error)

    return report


def _set_events(code, events, has_raised):
    """Sets which events of a function the interpreter reports, and whether its errors are."""
    monitoring = sys.monitoring
    monitoring.set_local_events(_tool, code, events)
    if has_raised:
        _raising.add(id(code))
    else:
        _raising.discard(id(code))
    # There is no such event of a single function.
    monitoring.set_events(_tool, monitoring.events.PY_UNWIND if _raising else monitoring.events.NO_EVENTS)
