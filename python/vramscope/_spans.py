"""Records the spans that the program names with ``torch.profiler.record_function``.

PyTorch itself names the steps of optimizers and the work of data loaders in this way. The class
stays as it is, because ``torch.jit.script`` compiles it. Where the interpreter cannot report calls,
its methods are wrapped, in functions whose source ``torch.jit.script`` finds as that of the
originals.
"""

import functools

from . import _monitoring
from ._frames import variable
from ._messages import call_harmlessly

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
        _end_observing = _observe(kind) if _monitoring.is_available() else _wrap(kind)


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


def _observe(kind):
    """Observes the methods of a class. Returns a function that ends this."""
    observations = [
        _monitoring.Observation(kind.__enter__.__code__, lambda frame: _mark(variable(frame, "self"), "begin")),
        _monitoring.Observation(kind.__exit__.__code__, lambda frame: _mark(variable(frame, "self"), "end")),
    ]

    def end():
        for observation in observations:
            observation.end()

    return end


def _wrap(kind):
    """Wraps the methods of a class. Returns a function that restores them."""
    enter, leave = kind.__enter__, kind.__exit__

    @functools.wraps(enter)
    def __enter__(self):
        call_harmlessly(_mark, self, "begin")
        return enter(self)

    @functools.wraps(leave)
    def __exit__(self, *arguments):
        try:
            return leave(self, *arguments)
        finally:
            call_harmlessly(_mark, self, "end")

    kind.__enter__, kind.__exit__ = __enter__, __exit__

    def restore():
        kind.__enter__, kind.__exit__ = enter, leave

    return restore


def _mark(span, stage):
    session = _session
    if session is None:
        return
    name = span.name
    if _is_recording:
        session.mark(name, stage)
    elif stage == "begin":
        _open.append(name)
    elif name in _open:
        # The innermost one ends first.
        del _open[len(_open) - 1 - _open[::-1].index(name)]
