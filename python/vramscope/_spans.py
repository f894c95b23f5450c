"""Records the spans that the program names with ``torch.profiler.record_function``.

PyTorch itself names the steps of optimizers and the work of data loaders in this way.
"""

_session = None
_originals = None


def install(torch, session):
    """Starts to record spans in a session."""
    global _session, _originals
    _session = session
    if _originals is not None:
        return
    kind = torch.autograd.profiler.record_function
    enter, leave = kind.__enter__, kind.__exit__
    _originals = kind, enter, leave

    def __enter__(self):
        session = _session
        if session is not None:
            session.mark(self.name, "begin")
        return enter(self)

    def __exit__(self, *arguments):
        try:
            return leave(self, *arguments)
        finally:
            session = _session
            if session is not None:
                session.mark(self.name, "end")

    kind.__enter__, kind.__exit__ = __enter__, __exit__


def remove():
    """Stops to record spans."""
    global _session, _originals
    _session = None
    if _originals is not None:
        kind, enter, leave = _originals
        kind.__enter__, kind.__exit__ = enter, leave
        _originals = None
