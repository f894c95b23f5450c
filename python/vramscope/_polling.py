"""Records snapshots of PyTorch's allocator at an interval, if its events cannot be followed."""

import time

from ._call_lock import CallLock
from ._pinned_memory import PinnedMemory
from ._snapshot import PAUSE_FACTOR, device_list, take_snapshot

#: Time between two snapshots, in seconds.
INTERVAL = 0.1


class Polling:
    """Takes and records snapshots until the session ends."""

    def __init__(self, session, torch, reason):
        """Records the first snapshot. Raises an error if this allocator has none."""
        self._session = session
        self._torch = torch
        self._devices = device_list(torch)
        self._pinned_memory = PinnedMemory(session, torch)
        #: Held while a snapshot is taken and recorded.
        self._lock = CallLock()
        self._note = (
            f"Polled: a snapshot every {INTERVAL * 1000:.0f} ms or less often. Blocks that lived only between two "
            f"snapshots are missing, and call stacks. Reason: {reason}"
        )
        self.record()

    def record(self, timeout=None):
        """Records what has changed since the last snapshot. Returns the time that a snapshot took,
        in seconds. Raises ``BusyError`` if another thread's snapshot takes longer than ``timeout``,
        in seconds."""
        return self._lock.run(self._record, timeout)

    def _record(self):
        start = time.monotonic()
        snapshot = take_snapshot(self._torch)
        taken = time.monotonic() - start
        self._session.poll(self._devices, self._note, snapshot)
        self._pinned_memory.record_changes()
        return taken

    def run(self, stopped):
        """Records snapshots until the event ``stopped`` is set, and one more then."""
        taken = 0.0
        while not stopped.wait(max(INTERVAL, PAUSE_FACTOR * taken)):
            taken = self.record()
        self.record()
