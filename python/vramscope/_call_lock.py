"""A lock for calls that a signal handler may interrupt.

Python runs signal handlers on the main thread, in the middle of any function, ours too. A handler
that calls vramscope would wait for ever for a lock that the interrupted call holds, and what that
call changes is half changed. So such a call fails at once.
"""

import threading


class BusyError(RuntimeError):
    """A call that another call of vramscope does not let run."""


class CallLock:
    """Lets one call at a time run. A call in the middle of another one of its thread fails.

    There is no ``with`` block: a handler that raises an error between the acquisition and the block
    would leave the lock held.
    """

    def __init__(self):
        self._lock = threading.RLock()
        #: The thread whose call runs; None if none does.
        self._owner = None

    def run(self, call, timeout=None):
        """Returns what ``call`` returns, once no other thread's call runs. Raises ``BusyError`` in
        the middle of a call of this thread, and if another thread's takes longer than
        ``timeout``, in seconds."""
        if timeout is None:
            with self._lock:
                return self._run(call)
        if not self._lock.acquire(timeout=timeout):
            raise BusyError("a call of vramscope in another thread takes too long")
        try:
            return self._run(call)
        finally:
            self._lock.release()

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
