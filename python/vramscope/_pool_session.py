"""Sessions on vramscope's pool: ``watch``, ``record``, ``on_oom``, ``scope`` after ``use_pool``."""

import importlib
import os
import threading

from . import _scopes, _spans, _watch
from ._pool_library import PoolError

_library = None
#: Held while a recording starts or ends.
_lock = threading.Lock()
#: True while a recording runs only for ``torch.cuda.memory._record_memory_history``.
_is_history = False


class PoolSession:
    """A recording of the pool, with the functions that sessions of the hook have."""

    def __init__(self, library, listen, record):
        global _is_history
        self._library = library
        with _lock:
            try:
                is_new, url = library.start(listen, record)
                if not is_new and _is_history:
                    # It goes on as this session, from the present state.
                    library.close()
                    _is_history = False
                    is_new, url = library.start(listen, record)
            except PoolError as error:
                raise _watch.WatchError(str(error)) from None
        if not is_new and record is not None:
            raise _watch.WatchError(
                f"{record}: a recording is in progress, as the environment variables of vramscope ask for: "
                "unset them, or use save()"
            )
        self.url = url

    def mark(self, name, stage=None):
        self._library.mark(name, stage)

    def save(self, path):
        self._library.save(path)

    def stop(self):
        with _lock:
            return self._library.close()


class StepMarks:
    """Marks the steps of the program's first optimizer."""

    def __init__(self, session):
        self._session = session
        self._handle = None
        self._optimizer = None
        self._steps = 0
        #: False if the program's trainer names the steps.
        self.marks_steps = True

    def install(self):
        # The package hides the module of this name.
        hooks = importlib.import_module("torch.optim.optimizer")
        self._handle = hooks.register_optimizer_step_post_hook(self._after_step)

    def remove(self):
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _after_step(self, optimizer, _arguments, _keywords):
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self._optimizer == id(optimizer):
            self._steps += 1
            if self.marks_steps:
                self._session.mark(f"step {self._steps}")


class PoolFollowing:
    """What of a recording of the pool only Python can do: steps, spans and modules."""

    def __init__(self, torch, library, session):
        self._torch = torch
        self._library = library
        self._session = session
        self._handles = []
        self.labels = StepMarks(session)
        self.status = "live"

    def start(self):
        self.labels.install()
        _spans.install(self._torch, self._session)

    def stop(self):
        self.labels.remove()
        _spans.remove()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.status = "stopped"

    def annotate(self, model, _optimizer=None):
        """Gives the forward pass of each module a scope, so that blocks name their module."""
        for path, module in model.named_modules():
            if path:
                self._add_scope(module, path.rpartition(".")[2])

    def _add_scope(self, module, name):
        def begin(*_):
            self._library.begin_scope(name, "activation")

        def end(*_):
            self._library.end_scope()

        self._handles += [
            module.register_forward_pre_hook(begin),
            module.register_forward_hook(end, always_call=True),
        ]

    def begin_at_failure(self, _device, _segment_bytes):
        """The pool is recorded from the first request on."""

    def pause(self):
        self._library.set_recording(False)

    def resume(self):
        self._library.set_recording(True)


def install(torch, library):
    """Makes sessions and scopes work on the pool."""
    global _library
    _library = library

    def open_session(listen, record):
        session = PoolSession(library, listen, None if record is None else os.fspath(record))
        return session, PoolFollowing(torch, library, session)

    _watch._open_on_pool = open_session
    kind = _scopes.scope
    enter, leave = kind.__enter__, kind.__exit__

    def __enter__(self):
        library.begin_scope(self._name, self._category)
        return enter(self)

    def __exit__(self, *arguments):
        library.end_scope()
        return leave(self, *arguments)

    kind.__enter__, kind.__exit__ = __enter__, __exit__


def keep_history(enabled):
    """Starts or ends the recording for ``torch.cuda.memory._record_memory_history``. A recording
    that the program started itself goes on."""
    global _is_history
    with _lock:
        if enabled and not _is_history:
            _is_history, _ = _library.start(None, None)
        elif not enabled and _is_history:
            _is_history = False
            _library.close()


def has_history():
    """Returns True while a recording keeps the history."""
    return _is_history or _watch._current is not None
