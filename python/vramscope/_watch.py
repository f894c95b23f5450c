"""Starts and stops sessions: ``watch``, ``record`` and ``mark``."""

import atexit
import contextlib
import os
import sys
import threading

from . import _kernel, _native
from ._follow import Following
from ._scopes import scope

#: Call stacks that can be recorded: of Python, also of C++, or none.
STACKS = ("python", "all", None)
#: The address of the live page if the program names none.
DEFAULT_LISTEN = "127.0.0.1:7791"

_lock = threading.Lock()
#: The session in progress; a process has at most one.
_current = None
#: Opens a session on vramscope's pool, which ``use_pool`` sets; None on PyTorch's own allocator.
_open_on_pool = None


class WatchError(RuntimeError):
    """A session that cannot be started."""


class Watch:
    """A session in progress.

    ``url`` is the address of the live page, or None without a page. ``stop()`` ends the session;
    so does leaving a ``with`` block.
    """

    def __init__(self, listen, record, stacks):
        if stacks not in STACKS:
            raise ValueError(f'stacks must be "python", "all" or None, not {stacks!r}')
        if _open_on_pool is not None:
            self._session, self._following = _open_on_pool(listen, record)
            self.url = self._session.url
            self._following.start()
            return
        # The proxy of a notebook's server passes on the browser's name for that server, which the
        # kernel does not know.
        options = {"any_host": True} if _kernel.is_kernel() else {}
        try:
            self._session = _native.Session(listen=listen, record=record, **options)
        except RuntimeError as error:
            raise WatchError(str(error)) from None
        self.url = self._session.url
        self._following = Following(self._session, stacks=stacks)
        self._following.start()

    @property
    def status(self):
        """What is followed: ``"waiting"`` until PyTorch has initialized CUDA, then ``"live"``;
        ``"polling: ..."`` with the reason why snapshots are recorded instead of events, or
        ``"off: ..."`` with the reason why nothing is recorded."""
        return self._following.status

    def mark(self, name):
        """Records a mark, a named moment."""
        self._session.mark(str(name))

    def scope(self, name, category=None):
        """Names a part of the program; see ``vramscope.scope``."""
        return scope(name, category)

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
    to. ``stacks="all"`` records C++ call stacks, too, and ``stacks=None`` leaves out all. If a
    session is in progress, that one is returned.
    """
    started = start_with_page(listen, record, stacks)
    if started.url:
        print(f"vramscope: listening: {started.url}", file=sys.stderr, flush=True)
    return started


def start_with_page(listen=None, record=None, stacks="python"):
    """Starts a session, with a page unless it pushes to a server; returns one in progress."""
    pushes = bool(os.environ.get("VRAMSCOPE_PUSH"))
    if listen is None and not pushes and not os.environ.get("VRAMSCOPE_LISTEN"):
        listen = DEFAULT_LISTEN
    return start(listen, record, stacks)


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
