"""A lock for calls that a signal handler may interrupt.

Python runs signal handlers on the main thread, in the middle of any function, ours too. A handler
that calls vramscope would wait for ever for a lock that the interrupted call holds, and what that
call changes is half changed. So such a call fails at once.
"""

import functools
import os
import threading
import weakref

from ._messages import raise_if_of_handler

#: By address: weak references to all locks. Their callbacks are no Python functions: in those, the
#: interpreter runs signal handlers and prints what they raise.
_locks = {}


class BusyError(RuntimeError):
    """Raised if another call of vramscope is in progress."""


class CallLock:
    """Lets one call at a time run. A call in the middle of another one of its thread fails. A
    forked child starts with all of these locks free.

    It is no context manager: a handler that raises an error between the acquisition and the block
    would leave the lock held.
    """

    def __init__(self):
        self._release_all()
        _locks[id(self)] = weakref.ref(self, functools.partial(_locks.pop, id(self)))

    def _release_all(self):
        self._lock = threading.RLock()
        #: The thread whose call runs; None if none does.
        self._owner = None

    def run(self, call, timeout=None):
        """Returns what ``call`` returns, once no other thread's call runs. Raises ``BusyError`` in
        the middle of a call of this thread, and if another thread's takes longer than
        ``timeout``, in seconds."""
        # Before the lock: a call that fails here has not acquired it once more.
        self.check()
        lock = self._lock
        try:
            if not lock.acquire(timeout=-1 if timeout is None else timeout):
                raise BusyError("a call of vramscope in another thread takes too long")
            return self._run(call)
        finally:
            # Also if a signal handler has raised an error right after the acquisition.
            try:
                lock.release()
            except RuntimeError as error:  # It was not acquired.
                raise_if_of_handler(error)

    def check(self):
        """Raises ``BusyError`` in the middle of a call of this thread."""
        if self._owner == threading.get_ident():
            raise BusyError(
                "this call interrupts another one of vramscope, as in a signal handler: make it after the handler"
            )

    def _run(self, call):
        # No handler can run between this statement and the `try`, nor in the `finally`.
        owner = threading.get_ident()
        self._owner = owner
        try:
            return call()
        finally:
            self._owner = None


def _after_fork_in_child():
    # Other threads of the parent may hold locks.
    for reference in list(_locks.values()):
        lock = reference()
        if lock is not None:
            lock._release_all()


os.register_at_fork(after_in_child=_after_fork_in_child)
