"""Records the spans that the program names with ``torch.profiler.record_function``.

PyTorch itself names the steps of optimizers and the work of data loaders in this way. The class stays
as it is, because ``torch.jit.script`` compiles it: the interpreter reports the calls of its methods
(``sys.monitoring``). Python 3.10 and 3.11 lack that; there the methods are wrapped, in functions whose
source ``torch.jit.script`` finds as that of the originals.
"""

import functools
import sys

#: The name that debuggers and profilers see for what uses ``sys.monitoring`` here.
TOOL_NAME = "vramscope"
#: Numbers of tools that Python reserves for nobody.
FREE_TOOLS = (3, 4)

_session = None
#: Ends to observe the class; None while nothing does.
_end_observing = None
#: True once the session takes marks.
_is_recording = False
#: The names of the open spans, outermost first, until the session takes marks.
_open = []


def install(torch, session):
    """Starts to follow spans for a session; ``begin`` starts to record them."""
    global _session, _end_observing, _is_recording
    _session, _is_recording = session, False
    _open.clear()
    if _end_observing is None:
        kind = torch.autograd.profiler.record_function
        _end_observing = _monitor(kind) if hasattr(sys, "monitoring") else _wrap(kind)


def begin():
    """Records spans from now on, also the rest of those that are open: a program may use a GPU for
    the first time in the middle of a span."""
    global _is_recording
    session = _session
    if session is not None and not _is_recording:
        _is_recording = True
        for name in _open:
            session.mark(name, "begin")
        _open.clear()


def remove():
    """Stops to record spans."""
    global _session, _end_observing
    _session = None
    _open.clear()
    end_observing, _end_observing = _end_observing, None
    if end_observing is not None:
        end_observing()


def _monitor(kind):
    """Reports the calls of a class's methods through the interpreter. Returns a function that ends
    this; None if other tools leave no number free: then spans are not recorded."""
    monitoring = sys.monitoring
    tool = next((number for number in FREE_TOOLS if monitoring.get_tool(number) is None), None)
    if tool is None:
        return None
    stages = {kind.__enter__.__code__: "begin", kind.__exit__.__code__: "end"}
    started = monitoring.events.PY_START

    def report(code, _offset):
        try:
            _mark(sys._getframe(1).f_locals["self"].name, stages[code])
        except Exception:  # The program must not notice.
            pass

    def end():
        for code in stages:
            monitoring.set_local_events(tool, code, monitoring.events.NO_EVENTS)
        monitoring.register_callback(tool, started, None)
        monitoring.free_tool_id(tool)

    monitoring.use_tool_id(tool, TOOL_NAME)
    monitoring.register_callback(tool, started, report)
    for code in stages:
        monitoring.set_local_events(tool, code, started)
    return end


def _wrap(kind):
    """Wraps the methods of a class. Returns a function that restores them."""
    enter, leave = kind.__enter__, kind.__exit__

    @functools.wraps(enter)
    def __enter__(self):
        _mark(self.name, "begin")
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self, *arguments):
        try:
            return leave(self, *arguments)
        finally:
            _mark(self.name, "end")

    kind.__enter__, kind.__exit__ = __enter__, __exit__

    def restore():
        kind.__enter__, kind.__exit__ = enter, leave

    return restore


def _mark(name, stage):
    session = _session
    if session is None:
        return
    if _is_recording:
        session.mark(name, stage)
    elif stage == "begin":
        _open.append(name)
    elif name in _open:
        # The innermost one ends first.
        del _open[len(_open) - 1 - _open[::-1].index(name)]
