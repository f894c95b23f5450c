"""Observes functions of PyTorch through the interpreter: ``sys.monitoring``, from Python 3.12 on.

Observing a function replaces nothing of PyTorch: ``torch.jit.script``, ``torch.export``, copies and
pickles have equal results with and without it.
"""

import os
import sys
import threading

from ._messages import raise_if_of_handler

#: The name that debuggers and profilers see.
TOOL_NAME = "vramscope"
#: Numbers of tools that Python leaves to any program. Most programs that take one take the lower.
FREE_TOOLS = (4, 3)

#: The number in use; None while no function is observed.
_tool = None
#: By address: a code object, and the functions to call when it starts, returns, and ends by an
#: exception. Not by value: functions that are defined again have equal code objects.
_observers = {}
#: Held while observations change, and while the interpreter is told of the change. A signal handler
#: that interrupts this may change them, too.
lock = threading.RLock()


class Observation:
    """The calls of a Python function, which are reported until ``end``.

    ``started(frame)``, ``returned(frame)`` and ``raised(frame)`` get the function's frame; the last
    two may be None. Errors in them are ignored. The function itself is not kept: it may have a
    closure of the program.
    """

    def __init__(self, code, started, returned=None, raised=None):
        self._code = code
        self._entry = _observers[id(code)] = code, started, returned, raised
        _update(code)

    def end(self):
        """Ends to observe."""
        # A later observation of the function goes on.
        if _observers.get(id(self._code)) is self._entry:
            del _observers[id(self._code)]
            _update(self._code)


def is_available():
    """Returns True if this interpreter can observe functions and other tools leave room for one."""
    return _tool is not None or _unused_tool() is not None


def _unused_tool():
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return None
    return next((tool for tool in FREE_TOOLS if monitoring.get_tool(tool) is None), None)


def _update(code):
    """Lets the interpreter report what is observed of a function. Frees the tool's number if no
    function is observed."""
    with lock:
        while True:
            observer = _observers.get(id(code))
            if observer is not None and not _take_tool():
                return
            if _tool is not None:
                _set_events(code, observer)
            # A signal handler may have changed it meanwhile.
            if _observers.get(id(code)) is observer:
                break
        _free_tool_if_unused()


def _set_events(code, observer):
    monitoring = sys.monitoring
    events = monitoring.events
    _, started, returned, _ = observer or (code, None, None, None)
    wanted = (events.PY_START if started else 0) | (events.PY_RETURN if returned else 0)
    monitoring.set_local_events(_tool, code, wanted)
    # There is no such event of a single function.
    wanted = events.PY_UNWIND if any(raised for *_, raised in list(_observers.values())) else events.NO_EVENTS
    if monitoring.get_events(_tool) != wanted:
        monitoring.set_events(_tool, wanted)


def _take_tool():
    """Takes a tool's number. Returns False if other tools have all of them."""
    global _tool
    while _tool is None:
        tool = _unused_tool()
        if tool is None:
            return False
        try:
            sys.monitoring.use_tool_id(tool, TOOL_NAME)
        except ValueError:
            # Another thread of the program has just taken it.
            continue
        # A signal handler may have taken the other one.
        if _tool is None:
            _tool = tool
            _set_callbacks(tool, _callback)
        else:
            sys.monitoring.free_tool_id(tool)
    return True


def _free_tool_if_unused():
    global _tool
    if not _observers and _tool is not None:
        # No signal handler runs between the check and this assignment. One that runs before the
        # number is free takes the other number.
        tool, _tool = _tool, None
        # Before Python 3.14, `free_tool_id` leaves both to the next tool of this number.
        sys.monitoring.set_events(tool, sys.monitoring.events.NO_EVENTS)
        _set_callbacks(tool, lambda _: None)
        sys.monitoring.free_tool_id(tool)


def _set_callbacks(tool, callback):
    events = sys.monitoring.events
    for index, event in enumerate((events.PY_START, events.PY_RETURN, events.PY_UNWIND), 1):
        sys.monitoring.register_callback(tool, event, callback(index))


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


def _replace_lock():
    """Replaces the lock in a forked child: another thread of its parent may have held it."""
    global lock
    lock = threading.RLock()


os.register_at_fork(after_in_child=_replace_lock)
