"""Starts and stops sessions: ``watch``, ``record`` and ``mark``."""

import atexit
import contextlib
import os
import sys

from . import _kernel, _native
from ._call_lock import BusyError, CallLock
from ._follow import Following, is_forked_from_cuda
from ._messages import print_message, raise_if_of_handler
from ._scopes import scope

#: Call stacks that can be recorded: of Python, also of C++, or none.
STACKS = ("python", "all", None)
#: The address of the live page if the program names none.
DEFAULT_LISTEN = "127.0.0.1:7791"
#: The starter of a session that ``on_oom`` has started.
ON_OOM = "on_oom()"
#: The starter of a session that ``vramscope run`` has started.
RUN = "vramscope run"
#: The starter of a session that goes on in a forked child.
PARENT = "the parent of this process"

#: How long the end of the program waits for a call in another thread, in seconds: longer than a
#: disk may hang in ``stop()``.
EXIT_TIMEOUT = 120.0

#: Held while a session starts or stops.
_lock = CallLock()
#: The session in progress; a process has at most one.
_current = None
#: Opens a session on vramscope's pool, which ``use_pool`` sets; None on PyTorch's own allocator.
_open_on_pool = None
#: Called with each session that has been stopped; ``on_oom`` sets it.
_after_stop = None


class WatchError(RuntimeError):
    """A session that cannot be started, or a file that cannot be written."""


class Watch:
    """A session in progress.

    ``url`` is the address of the live page, or None without a page. ``stop()`` ends the session;
    so does leaving a ``with`` block.
    """

    #: What started the session if the program did not: ``"vramscope run"``, ``"on_oom()"``, ….
    starter = None
    #: The files that the session was asked to write.
    _files = ()
    #: True if one of them cannot be written.
    _lacks_file = False
    #: The block of ``record()`` that uses the session, which the program did not start.
    _block = None
    #: What ``stop()`` has returned; None before.
    _is_complete = None
    #: True if the session pushes to the server of the environment variable.
    _pushes = False
    #: Makes a process of ``multiprocessing`` end the session; None if there is no such thing.
    _multiprocessing_exit = None

    def __init__(self, listen, record, stacks, starter=None, **options):
        _check_stacks(stacks)
        self.starter = starter
        if record is not None:
            record = checked_path(record)
            self._files = (record,)
        # In a forked child without CUDA, the other kind of session is off, and says so.
        if _open_on_pool is not None and not is_forked_from_cuda():
            self._session, self._following = _open_on_pool(listen, record)
            self._pushes = _pushes()
        else:
            try:
                self._session = _native.Session(listen=listen, record=record, **_page_options(), **options)
            except RuntimeError as error:
                raise_if_of_handler(error)
                raise WatchError(str(error)) from None
            self._pushes = _pushes() and options.get("from_environment", True)
            self._following = Following(self._session, stacks=stacks)
        try:
            self._following.start()
        except BaseException:
            # A signal handler raised it: the program gets no session that it could stop.
            self._following.stop()
            self._session.stop()
            raise

    @property
    def url(self):
        """The address of the live page, or None without a page."""
        return self._session.url

    @property
    def status(self):
        """What is followed: ``"waiting"`` until PyTorch has initialized CUDA, then ``"live"``;
        ``"polling: ..."`` with the reason why snapshots are recorded instead of events,
        ``"off: ..."`` with the reason why nothing is recorded, or ``"stopped"``."""
        return self._following.status if self._is_complete is None else "stopped"

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
        path = os.fspath(path)
        self._following.record_now()
        try:
            self._session.save(path)
        except RuntimeError as error:
            raise_if_of_handler(error)
            raise WatchError(f"cannot save {os.fsdecode(path)}: {error}") from None

    def stop(self):
        """Ends the session. Returns False if its file is incomplete or was not written.

        In a signal handler that has interrupted another call of vramscope, it has no effect, and a
        line on stderr says so: the session ends with the program."""
        is_complete = self._end()
        if _after_stop is not None and self._is_complete is not None:
            _after_stop(self)
        return is_complete

    def _end(self, timeout=None):
        """Ends the session; ``on_oom`` starts no other one."""
        try:
            return _lock.run(self._end_now, timeout)
        except BusyError as error:
            print_message(f"stop() has no effect: {error}")
            return False

    def _end_at_exit(self):
        """Ends the session at the end of the program."""
        self._end(EXIT_TIMEOUT)

    def _end_now(self):
        """Ends the session; the caller holds the lock."""
        global _current
        if self._is_complete is None:
            is_off = self._following.status.startswith("off")
            self._following.stop()
            self._is_complete = self._session.stop() and not (is_off and self._files) and not self._lacks_file
            self._unregister()
        if _current is self:
            _current = None
        return self._is_complete

    def _abandon(self):
        """Leaves the session to the parent, in a forked child: here it is as if it had ended."""
        self._is_complete = True
        self._unregister()
        if self._block is not None:
            self._block._is_complete = True
        self._following.abandon()

    def _unregister(self):
        """Removes the exit handlers, which would keep the session alive until the process ends."""
        atexit.unregister(self._end_at_exit)
        if self._multiprocessing_exit is not None:
            self._multiprocessing_exit.cancel()

    def _take_over(self, listen, record, stacks):
        """Makes a session that the program did not start its own: opens the page and the file that
        ``watch()`` asks for."""
        _check_stacks(stacks)
        record = None if record is None else checked_path(record)
        address = listen or os.environ.get("VRAMSCOPE_LISTEN")
        if address is None and not _pushes():
            address = DEFAULT_LISTEN
        try:
            if address is not None and self.url is None:
                self._session.serve(address, **_page_options())
        except RuntimeError as error:
            raise_if_of_handler(error)
            raise WatchError(str(error)) from None
        if record is not None and record not in self._files:
            self._add_file(record, False)
            self._files += (record,)
        if self.starter == ON_OOM and stacks != "python":
            self._following.change_stacks(stacks)
        self._report_ignored(listen, None, stacks)
        self.starter = None

    def _add_file(self, path, can_end):
        """Writes the recording to another file, too. Returns False if that cannot be written."""
        self._following.record_now()
        try:
            self._session.add_file(path, can_end)
        except RuntimeError as error:
            raise_if_of_handler(error)
            print_message(f"{error}; no file is written")
            self._lacks_file = True
            return False
        return True

    def _report_ignored(self, listen, record, stacks):
        """Prints which arguments of ``watch()`` have no effect in the session in progress."""
        ignored = []
        if listen is not None and f"//{listen}/" not in (self.url or ""):
            ignored.append(f"listen={listen!r}")
        if record is not None and os.fspath(record) not in self._files:
            ignored.append(f"record={os.fspath(record)!r}")
        if stacks not in ("python", self._following.stacks):
            ignored.append(f"stacks={stacks!r}")
        if ignored:
            by = f" by {self.starter}" if self.starter else ""
            page = f", with its page at {self.url.partition('?')[0]}" if self.url else ""
            call = f"watch({', '.join(ignored)})"
            print_message(f"{call} has no effect: a session is in progress{by}{page}; stop it first")

    def _end_block(self):
        """Continues without the block of ``record()``. The caller does not hold the lock."""
        self._block = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class _Block(Watch):
    """A block of ``record()`` in a session that the program did not start. The session goes on."""

    def __init__(self, session, path):
        self._owner, self._session, self._following = session, session._session, session._following
        self._files = (path,)
        session._block = self

    def open_file(self):
        """Begins the file; the caller holds the lock. A block whose file cannot be written has no
        effect: ``stop()`` makes room for another one."""
        is_open = False
        try:
            is_open = self._add_file(*self._files, True)
        finally:
            if not is_open:
                self._is_complete = False

    def stop(self):
        """Ends the file. Returns False if it is incomplete."""
        if self._is_complete is None:
            try:
                self._following.record_now()
            except BusyError as error:
                print_message(f"stop() has no effect: {error}")
                return False
            try:
                self._is_complete = self._session.end_file(*self._files)
            except RuntimeError as error:
                raise_if_of_handler(error)
                print_message(f"cannot write {os.fsdecode(self._files[0])}: {error}")
                self._is_complete = False
        # Not if another block has followed it.
        if self._owner._block is self:
            self._owner._end_block()
        return self._is_complete


def watch(listen=None, record=None, stacks="python"):
    """Watches PyTorch's GPU memory live and returns a ``Watch``.

    ``listen`` is the address of the page, ``127.0.0.1:7791`` by default or the value of
    ``VRAMSCOPE_LISTEN``; port 0 takes any free port. If the port is in use, the next free one is
    taken. ``record`` names a file to write the recording to. ``stacks="all"`` records C++ call
    stacks, too, and ``stacks=None`` leaves out all.

    If ``watch()`` or ``record()`` has started a session, that one is returned. A session that
    ``on_oom``, ``vramscope run`` or ``vramscope attach`` has started gets the page and the file,
    which then begins with the current state.
    """
    started = start_with_page(listen, record, stacks)
    if started.url:
        print_message(f"listening: {started.url}")
    return started


def start_with_page(listen=None, record=None, stacks="python"):
    """Starts a session, with a page unless it pushes to a server; uses one in progress."""

    def start_or_use():
        if _current is None:
            has_default = listen is None and not _pushes() and not os.environ.get("VRAMSCOPE_LISTEN")
            _start(DEFAULT_LISTEN if has_default else listen, record, stacks)
        elif _current.starter is None:
            _current._report_ignored(listen, record, stacks)
        else:
            _current._take_over(listen, record, stacks)
        return _current

    return _lock.run(start_or_use)


def start(listen, record, stacks, starter=None, **options):
    """Starts a session, or returns the one in progress."""

    def start_or_use():
        if _current is None:
            _start(listen, record, stacks, starter, **options)
        return _current

    return _lock.run(start_or_use)


def _start(listen, record, stacks, starter=None, **options):
    global _current
    if is_forked_from_cuda():
        # There will be nothing to show.
        listen, options["is_child"] = None, True
    _current = Watch(listen, record, stacks, starter, **options)
    # Before the interpreter stops its threads.
    atexit.register(_current._end_at_exit)
    _current._multiprocessing_exit = MultiprocessingExit(_current, Watch._end_at_exit)


class MultiprocessingExit:
    """Calls ``end(owner)`` when a process of ``multiprocessing`` ends, which runs no other exit
    handlers, until ``cancel``."""

    def __init__(self, owner, end):
        self._end = end
        self._finalizer = None
        self._is_cancelled = False
        self._util = sys.modules.get("multiprocessing.util")
        if self._util is not None:
            self._register(owner)
            # Such a process forgets what its parent registered, after the fork.
            self._util.register_after_fork(owner, self._register)

    def _register(self, owner):
        if not self._is_cancelled:
            self._finalizer = self._util.Finalize(None, self._end, args=(owner,), exitpriority=0)

    def cancel(self):
        """Does nothing at the end of the process any more."""
        self._is_cancelled = True
        finalizer, self._finalizer = self._finalizer, None
        if finalizer is not None:
            finalizer.cancel()


def continue_in_child():
    """Leaves the session in progress to the parent, in a forked child, and starts another one if it
    pushes: as a process of its own."""
    global _current
    parent, _current = _current, None
    if parent is None:
        return
    parent._abandon()
    if parent._pushes and not parent._following.is_attached and not is_forked_from_cuda():
        starter = RUN if parent.starter == RUN else PARENT
        start(None, None, parent._following.stacks, starter, is_child=True)


@contextlib.contextmanager
def record(path, stacks="python"):
    """Records PyTorch's GPU memory to the file ``path`` while the ``with`` block runs.

    In a session that ``on_oom``, ``vramscope run`` or ``vramscope attach`` has started, the file
    begins with the current state, and the session goes on after the block.
    """
    path = checked_path(path)
    block = None

    def start_or_use():
        nonlocal block
        if _current is None:
            _start(None, path, stacks)
            return _current
        if _current.starter is None or _current._block is not None:
            raise WatchError("a session is in progress: stop it first, or use its save()")
        block = _Block(_current, path)
        block.open_file()
        return block

    try:
        session = _lock.run(start_or_use)
    except BaseException:
        # Of a signal handler, or because the call itself is in one.
        if block is not None:
            block.stop()
        raise
    try:
        if session._is_complete is False:
            # A block without a file. Not before: it may end its session, which takes the lock.
            session.stop()
        yield session
    finally:
        session.stop()


def checked_path(path):
    """Returns a path for a recording; raises ``WatchError`` if no file can have it. Nothing is
    created, and an existing file stays as it is. A disk that is full or read-only is no reason to
    end the program: then a line on stderr says that the file is not written."""
    path = os.fspath(path)
    folder = os.path.dirname(path) or os.curdir
    reason = None
    if os.path.isdir(path):
        reason = "it is a folder"
    elif not os.path.isdir(folder):
        reason = f"there is no folder {os.fsdecode(folder)}"
    if reason is not None:
        raise WatchError(f"cannot record to {os.fsdecode(path)}: {reason}")
    return path


def _check_stacks(stacks):
    if stacks not in STACKS:
        raise ValueError(f'stacks must be "python", "all" or None, not {stacks!r}')


def _page_options():
    # The proxy of a notebook's server passes on the browser's name for that server, which the
    # kernel does not know.
    return {"any_host": True} if _kernel.is_kernel() else {}


def _pushes():
    return bool(os.environ.get("VRAMSCOPE_PUSH"))


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
