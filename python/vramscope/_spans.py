"""Records the spans that the program names with ``torch.profiler.record_function``.

PyTorch itself names the steps of optimizers and the work of data loaders in this way.
"""

_session = None
_originals = None
#: True once the session takes marks.
_is_recording = False
#: The names of the open spans, outermost first, until the session takes marks.
_open = []


def install(torch, session):
    """Starts to follow spans for a session; ``begin`` starts to record them."""
    global _session, _originals, _is_recording
    _session, _is_recording = session, False
    _open.clear()
    if _originals is not None:
        return
    kind = torch.autograd.profiler.record_function
    enter, leave = kind.__enter__, kind.__exit__
    _originals = kind, enter, leave

    def __enter__(self):
        _mark(self.name, "begin")
        return enter(self)

    def __exit__(self, *arguments):
        try:
            return leave(self, *arguments)
        finally:
            _mark(self.name, "end")

    kind.__enter__, kind.__exit__ = __enter__, __exit__


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


def remove():
    """Stops to record spans."""
    global _session, _originals
    _session = None
    _open.clear()
    if _originals is not None:
        kind, enter, leave = _originals
        kind.__enter__, kind.__exit__ = enter, leave
        _originals = None
