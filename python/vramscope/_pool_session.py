"""Sessions on vramscope's pool: ``watch``, ``record``, ``on_oom``, ``scope`` after ``use_pool``."""

import importlib
import os
import sys

from . import _metadata, _scopes, _spans, _watch
from ._call_lock import CallLock
from ._follow import is_forked_from_cuda
from ._messages import print_message
from ._module_scopes import ModuleScopes
from ._phases import PhaseSpans
from ._pool_library import PoolError, PoolLibrary
from ._steps import StepMarks

_library = None
#: Held while a recording starts or ends.
_lock = CallLock()
#: True while a recording runs only for ``torch.cuda.memory._record_memory_history``.
_is_history = False


def continue_in_child():
    """Prepares a forked child: it has a pool of its own, which keeps the history if the parent's
    does. In a child of a process that has used CUDA, neither works."""
    global _is_history
    if _library is None:
        return
    _library.after_fork()
    _watch.MultiprocessingExit(_library, PoolLibrary.close)
    kept_history, _is_history = _is_history, False
    if kept_history and not is_forked_from_cuda():
        keep_history(True)


class PoolSession:
    """A recording of the pool, with the functions that sessions of the hook have."""

    def __init__(self, library, listen, record):
        self._library = library
        self._listen, self._record = listen, record

        def start():
            global _is_history
            is_new, url = library.start(listen, record)
            if not is_new and _is_history:
                # It goes on as this session, from the present state.
                library.close()
                _is_history = False
                is_new, url = library.start(listen, record)
            return is_new, url

        try:
            is_new, self.url = _lock.run(start)
        except PoolError as error:
            raise _watch.WatchError(str(error)) from None
        #: False for a recording that environment variables have started.
        self._is_own = is_new
        #: Files that are written when the session stops.
        self._files = []
        if not is_new and record is not None:
            self._save_at_end(record)

    def _save_at_end(self, record):
        if not os.environ.get("VRAMSCOPE_LISTEN") and not os.environ.get("VRAMSCOPE_PUSH"):
            # It goes to a file only, and nothing is kept in memory that could be saved.
            raise _watch.WatchError(
                f"{os.fsdecode(record)}: a recording is in progress, as VRAMSCOPE_RECORD asks for: unset the variable"
            )
        self._files.append(record)
        print_message(f"{os.fsdecode(record)} is written when the session stops: environment variables have started "
            "the recording")

    def serve(self, listen, **_options):
        """Serves the page, if the recording is this session's own."""
        self._start_again(listen, None)

    def add_file(self, path, can_end):
        """Writes the recording to another file: until ``end_file``, or from now on."""
        if can_end:
            return
        if self._is_own:
            self._start_again(None, path)
        else:
            self._save_at_end(path)

    def end_file(self, path):
        """Writes the newest part of the recording to a file of ``add_file``."""
        self._library.save(path)
        return True

    def _start_again(self, listen, record):
        """Starts another recording, with a page or a file, too, from the current state on."""
        if not self._is_own:
            return
        listen, record = listen or self._listen, record or self._record

        def start():
            self._library.close()
            try:
                _, self.url = self._library.start(listen, record)
            except PoolError:
                _, self.url = self._library.start(self._listen, self._record)
                raise

        _lock.run(start)
        self._listen, self._record = listen, record

    def mark(self, name, stage=None):
        self._library.mark(name, stage)

    def save(self, path):
        self._library.save(path)

    def stop(self):
        is_complete = True
        for path in self._files:
            try:
                self._library.save(path)
            except PoolError as error:
                print_message(f"cannot write {error}")
                is_complete = False
        if self._files:
            # The page or the server that the variables name goes on.
            return is_complete
        return _lock.run(self._library.close)


class _StepHook:
    """Marks the steps of the program's optimizer."""

    def __init__(self, session):
        self.step_marks = StepMarks(session)
        self._handle = None

    def install(self):
        # The package hides the module of this name.
        hooks = importlib.import_module("torch.optim.optimizer")
        self._handle = hooks.register_optimizer_step_post_hook(self._after_step)

    def remove(self):
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _after_step(self, optimizer, _arguments, _keywords):
        self.step_marks.after_step(optimizer)


class PoolFollowing:
    """What of a recording of the pool only Python can do: steps, spans and modules."""

    def __init__(self, torch, library, session):
        self._torch = torch
        self._library = library
        self._session = session
        self._modules = ModuleScopes(library)
        self._phases = PhaseSpans(session)
        self.labels = _StepHook(session)
        #: ``vramscope attach`` does not follow the pool.
        self.is_attached = False
        #: The pool's own sites need none.
        self.stacks = None
        self.status = "live"

    def start(self):
        self.labels.install()
        _spans.install(self._torch, self._session)
        _spans.begin()
        self._phases.install()
        _metadata.install(self._torch, self._session)

    def stop(self):
        self.labels.remove()
        _spans.remove()
        self._phases.remove()
        _metadata.remove()
        self._modules.remove()
        self.status = "stopped"

    def abandon(self):
        """Ends, in a forked child, what belongs to its parent."""
        self.stop()

    def annotate(self, model, _optimizer=None):
        """Gives the forward pass of each module a scope, so that blocks name their module, and
        records the model's passes as spans."""
        self._modules.add(model)
        self._phases.add(model)

    def record_now(self):
        """The pool is recorded at once."""

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

    def change():
        global _is_history
        if enabled and not _is_history:
            _is_history, _ = _library.start(None, None)
        elif not enabled and _is_history:
            _is_history = False
            _library.close()

    _lock.run(change)


def has_history():
    """Returns True while a recording keeps the history."""
    return _is_history or _watch._current is not None
