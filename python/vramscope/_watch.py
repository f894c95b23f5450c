"""Starts and stops sessions: ``watch``, ``record`` and ``mark``."""

import atexit
import contextlib
import os
import sys
import threading

from . import _native
from ._follow import Following

#: The address of the live page if the program names none.
DEFAULT_LISTEN = "127.0.0.1:7791"

_lock = threading.Lock()
#: The session in progress; a process has at most one.
_current = None


class WatchError(RuntimeError):
    """A session that cannot be started."""


class Watch:
    """A session in progress.

    ``url`` is the address of the live page, or None without a page. ``stop()`` ends the session;
    so does leaving a ``with`` block.
    """

    def __init__(self, listen, record, stacks):
        if stacks not in ("python", None):
            raise ValueError(f'stacks must be "python" or None, not {stacks!r}')
        try:
            self._session = _native.Session(listen=listen, record=record)
        except RuntimeError as error:
            raise WatchError(str(error)) from None
        self.url = self._session.url
        self._following = Following(self._session, with_stacks=stacks is not None)
        self._following.start()

    @property
    def status(self):
        """What is followed: ``"waiting"`` until PyTorch has initialized CUDA, then ``"live"``, or
        ``"off: ..."`` with the reason why the allocator cannot be followed."""
        return self._following.status

    def mark(self, name):
        """Records a mark, a named moment."""
        self._session.mark(str(name))

    def annotate(self, model, optimizer=None):
        """Labels a model's parameters, inputs and optimizer state from now on, not from the first
        step on, and names its modules."""
        self._following.annotate(model, optimizer)

    def save(self, path):
        """Writes what has been recorded so far to the file ``path``. A long recording may lack its
        beginning; ``record=`` keeps everything."""
        self._session.save(os.fspath(path))

    def stop(self):
        """Ends the session. Returns False if its file is incomplete."""
        global _current
        self._following.stop()
        is_complete = self._session.stop()
        with _lock:
            if _current is self:
                _current = None
        return is_complete

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def watch(listen=None, record=None, stacks="python"):
    """Watches PyTorch's GPU memory live and returns a ``Watch``.

    ``listen`` is the address of the page, ``127.0.0.1:7791`` by default or the value of
    ``VRAMSCOPE_LISTEN``; port 0 takes any free port. ``record`` names a file to write the recording
    to. ``stacks=None`` leaves out the Python call stacks. If a session is in progress, that one is
    returned.
    """
    pushes = bool(os.environ.get("VRAMSCOPE_PUSH"))
    if listen is None and not pushes and not os.environ.get("VRAMSCOPE_LISTEN"):
        listen = DEFAULT_LISTEN
    started = start(listen, record, stacks)
    if started.url:
        print(f"vramscope: listening: {started.url}", file=sys.stderr, flush=True)
    return started


def start(listen, record, stacks):
    """Starts a session, or returns the one in progress."""
    global _current
    with _lock:
        if _current is None:
            _current = Watch(listen, record, stacks)
            # Before the interpreter stops its threads.
            atexit.register(_current.stop)
        return _current


@contextlib.contextmanager
def record(path, stacks="python"):
    """Records PyTorch's GPU memory to the file ``path`` while the ``with`` block runs."""
    global _current
    with _lock:
        if _current is not None:
            raise WatchError("a session is in progress: stop it first, or use its save()")
        _current = session = Watch(None, os.fspath(path), stacks)
    try:
        yield session
    finally:
        session.stop()


def mark(name):
    """Records a mark, a named moment, in the session in progress."""
    session = _current
    if session is not None:
        session.mark(name)


def save(path):
    """Writes what the session in progress has recorded so far to the file ``path``."""
    if _current is None:
        raise WatchError("nothing is watched: call vramscope.watch() first")
    _current.save(path)


def annotate(model, optimizer=None):
    """Labels a model's parameters, inputs and optimizer state in the session in progress."""
    if _current is not None:
        _current.annotate(model, optimizer)


def memory_stats(device=None):
    """Returns the counters of ``torch.cuda.memory_stats()``, of the allocator that is in use."""
    import torch

    return torch.cuda.memory_stats(device)
