"""What ``vramscope attach`` runs in the process: starts and stops a session that pushes.

The functions are called in a thread of their own. They return text for the user, or raise
``AttachError``.
"""

import atexit
import os
import sys
import threading

from . import _native, _watch
from ._follow import Following

#: How often a session checks that the command it pushes to still runs, in seconds.
CHECK_INTERVAL = 1.0
#: What messages call the command.
ATTACH = "vramscope attach"


class AttachError(RuntimeError):
    """Why a session cannot be started or stopped."""


class AttachedWatch(_watch.Watch):
    """A session that pushes to ``vramscope attach``, and stops when that command ends, unless the
    program itself uses it by then."""

    starter = ATTACH

    def __init__(self, push_url, stacks, attacher):
        self._session = _native.Session(push=push_url, from_environment=False)
        self._attacher = attacher
        self._ended = threading.Event()
        self._following = Following(self._session, stacks=None if stacks == "none" else stacks)

    def start(self):
        """Starts to follow the allocator."""
        self._following.start()
        atexit.register(self._end_at_exit)
        threading.Thread(target=self._stop_after_attacher, name="vramscope-attach", daemon=True).start()

    def detach(self):
        """Ends the connection to the command, and the session if the program does not use it."""
        self._ended.set()
        if self.is_detached():
            self._session.end_push()
        else:
            self.stop()

    def is_detached(self):
        """Returns True if only the program still uses the session."""
        return self._ended.is_set() and (self.starter is None or self._block is not None)

    def _end_now(self):
        self._ended.set()
        return super()._end_now()

    def _end_block(self):
        super()._end_block()
        if self._ended.is_set() and self.starter is not None:
            self.stop()

    def has_lost_attacher(self):
        """Returns True if the command that started the session no longer runs."""
        return not self._attacher.is_running()

    def _stop_after_attacher(self):
        while not self._ended.wait(CHECK_INTERVAL):
            if self.has_lost_attacher():
                self.detach()


class _Process:
    """Another process on this machine. A later process with its id is not taken for it."""

    def __init__(self, pid):
        self._pid = pid
        self._start = self._start_time()

    def is_running(self):
        try:
            os.kill(self._pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return self._start is None or self._start_time() == self._start

    def _start_time(self):
        """Returns when the process started; None if it has ended or another user's are hidden."""
        try:
            with open(f"/proc/{self._pid}/stat", encoding="utf-8", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in ("Z", "X") else fields[19]


def check():
    """Returns the versions of PyTorch and Python; raises ``AttachError`` if the process cannot be
    recorded now."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(torch.__spec__, "_initializing", False) or not hasattr(torch, "cuda"):
        raise AttachError("it has not imported PyTorch: attach later, or start it with vramscope run")
    version = torch.__version__
    if not hasattr(torch._C, "_cuda_memorySnapshot"):
        raise AttachError(f"its PyTorch {version} has no CUDA support, so it uses no GPU memory")
    if _watch._open_on_pool is not None:
        raise AttachError("it is on vramscope's pool: start it with VRAMSCOPE_LISTEN, or call vramscope.watch() in it")
    current = _watch._current
    if isinstance(current, AttachedWatch) and not current.is_detached():
        if not current.has_lost_attacher():
            raise AttachError("another vramscope attach records it: end that one, or run vramscope detach")
        current.detach()
        current = _watch._current
    if current is not None:
        page = f" at {current.url.partition('?')[0]}" if current.url else ""
        raise AttachError(f"it records itself already, by vramscope.watch() or vramscope run{page}")
    return f"PyTorch {version}, Python {sys.version.split()[0]}"


def start(push_url, stacks="python", attacher=None):
    """Starts a session that pushes to ``push_url``, and that ends with the process ``attacher``.

    Returns ``"live"``; ``"waiting"`` if the program has not used a GPU yet; or ``"polling: ..."``
    with the reason why snapshots are recorded instead of events.
    """
    check()
    session = AttachedWatch(push_url, stacks, _Process(os.getpid() if attacher is None else attacher))

    def use():
        if _watch._current is not None:
            raise AttachError("another session has just started")
        _watch._current = session

    _watch._lock.run(use)
    session.start()
    status = session.status
    if status.startswith("off"):
        session.stop()
        raise AttachError(f"its allocator cannot be followed: {status.partition(': ')[2]}")
    return status


def stop(missing_ok=False):
    """Stops the session that ``start`` started. The tracker stays and returns at once."""
    session = _watch._current
    if not isinstance(session, AttachedWatch) or session.is_detached():
        if missing_ok:
            return ""
        raise AttachError("vramscope attach does not record it")
    session.detach()
    return ""
