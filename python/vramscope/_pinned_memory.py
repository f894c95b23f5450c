"""Records pinned host memory from snapshots.

PyTorch calls no tracker for pinned memory. From 2.14 on, its snapshots contain it, once it has been
asked to record it. Earlier versions have counters only (``torch.cuda.host_memory_stats()``), which
say nothing about blocks.
"""

import inspect
import sys
import time

from ._messages import print_message, raise_if_of_handler
from ._snapshot import PAUSE_FACTOR, take_pinned_snapshot


class PinnedMemory:
    """Records the pinned memory of a program that uses some."""

    def __init__(self, session, torch):
        self._session = session
        self._torch = torch
        #: True while this version is known to have pinned memory in its snapshots.
        self._has_snapshots = has_pinned_snapshots(torch)
        #: The counters at the last snapshot.
        self._stats = None
        self._next_time = 0.0

    def record_changes(self):
        """Records what has changed since the last snapshot, unless the pause after it goes on:
        snapshots take at most 2% of one thread's time. A program without pinned memory is left as
        it is."""
        if not self._has_snapshots or time.monotonic() < self._next_time:
            return
        try:
            stats = self._torch._C._cuda_hostMemoryStats()
            if stats == self._stats or (self._stats is None and not has_blocks(stats)):
                return
            start = time.monotonic()
            snapshot = self._take_snapshot(stats)
            if snapshot is not None:
                self._session.record_pinned_memory(snapshot)
            end = time.monotonic()
            self._stats = stats
            self._next_time = end + PAUSE_FACTOR * (end - start)
        except Exception as error:  # The program must not notice, and device memory is recorded on.
            raise_if_of_handler(error)
            self._has_snapshots = False
            print_message(f"pinned host memory is not recorded: {error!r}")

    def _take_snapshot(self, stats):
        """Returns a snapshot; None if the program's own history of device memory would end."""
        segments, snapshot = take_pinned_snapshot(self._torch)
        if segments or not has_blocks(stats):
            return snapshot
        # PyTorch does not record pinned memory, or no longer.
        if self._torch._C._cuda_isHistoryEnabled():
            return None
        record_pinned_memory(self._torch)
        segments, snapshot = take_pinned_snapshot(self._torch)
        if not segments and has_blocks(self._torch._C._cuda_hostMemoryStats()):
            raise RuntimeError("PyTorch's snapshots do not contain it")
        return snapshot


def has_pinned_snapshots(torch):
    """Returns True if this version of PyTorch can have pinned memory in its snapshots."""
    try:
        parameters = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    except (AttributeError, TypeError, ValueError) as error:
        raise_if_of_handler(error)
        return False
    return {"record_pinned_host_memory", "record_cuda"} <= parameters.keys()


def has_blocks(stats):
    """Returns True if the allocator of pinned memory has blocks, in use or not."""
    return stats["allocated_bytes"]["current"] > 0


def record_pinned_memory(torch):
    """Lets PyTorch's snapshots contain pinned memory: with a history of one entry and without call
    stacks. This ends a history of device memory. Annotations are global, so that a history which
    the program begins later has those of all threads."""
    torch.cuda.memory._record_memory_history(
        "all",
        context=None,
        stacks="python",
        max_entries=1,
        global_record_annotations=True,
        record_pinned_host_memory=True,
        record_cuda=False,
    )
