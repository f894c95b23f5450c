"""A lock for calls that a signal handler may interrupt.

Python runs signal handlers on the main thread, in the middle of any function, ours too. A handler
that calls vramscope would wait for ever for a lock that the interrupted call holds, and what that
call changes is half changed. So such a call fails at once.
"""

import os
import threading
import weakref

_locks = weakref.WeakSet()


class BusyError(RuntimeError):
    """A call that another call of vramscope does not let run."""


class CallLock:
    """Lets one call at a time run. A call in the middle of another one of its thread fails. In a
    forked child, no call runs.

    There is no ``with`` block: a handler that raises an error between the acquisition and the block
    would leave the lock held.
    """

    def __init__(self):
        self._release_all()
        _locks.add(self)

    def _release_all(self):
        self._lock = threading.RLock()
        #: The thread whose call runs; None if none does.
        self._owner = None

    def run(self, call, timeout=None):
        """Returns what ``call`` returns, once no other thread's call runs. Raises ``BusyError`` in
        the middle of a call of this thread, and if another thread's takes longer than
        ``timeout``, in seconds."""
        lock = self._lock
        if timeout is None:
            with lock:
                return self._run(call)
        if not lock.acquire(timeout=timeout):
            raise BusyError("a call of vramscope in another thread takes too long")
        try:
            return self._run(call)
        finally:
            lock.release()

    def check(self):
        """Raises ``BusyError`` in the middle of a call of this thread."""
        if self._owner == threading.get_ident():
            raise BusyError(
                "this call interrupts another one of vramscope, as in a signal handler: make it after the handler"
            )

    def _run(self, call):
        self.check()
        # No handler can run between this statement and the `try`, nor in the `finally`.
        owner = threading.get_ident()
        self._owner = owner
        try:
            return call()
        finally:
            self._owner = None


def _after_fork_in_child():
    # Other threads of the parent may hold locks.
    for lock in list(_locks):
        lock._release_all()


os.register_at_fork(after_in_child=_after_fork_in_child)
