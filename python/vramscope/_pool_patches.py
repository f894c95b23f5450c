"""Functions of PyTorch that answer from vramscope's pool.

PyTorch raises an error for them with every pluggable allocator. Each is replaced where PyTorch's
Python code calls its C++ code, so that all functions built on it work.
"""

import pickle

from . import _pool_session
from ._imports import call_after_import

#: PyTorch's functions for private pools' checkpoints, which only graph trees use.
CHECKPOINT_FUNCTIONS = ("_cuda_getCheckpointState", "_cuda_setCheckpointPoolState", "_cuda_checkPoolLiveAllocations")


def install(torch, library, incomplete):
    """Replaces the functions. ``incomplete`` says why private pools do not work, or is empty."""
    extension = torch._C
    answers = _Answers(library)
    for name, function in {
        "_cuda_memoryStats": answers.memory_stats,
        "_cuda_resetPeakMemoryStats": library.reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": library.reset_totals,
        "_cuda_memorySnapshot": answers.snapshot,
        "_cuda_getMemoryFraction": library.memory_fraction,
        "_cuda_record_memory_history": answers.record_history,
        "_cuda_record_memory_history_legacy": answers.record_history,
        "_cuda_isHistoryEnabled": _pool_session.has_history,
        "_cuda_attach_out_of_memory_observer": library.attach_out_of_memory_observer,
        "_cuda_cudaCachingAllocator_set_allocator_settings": library.configure,
        "_accelerator_setAllocatorSettings": library.configure,
        # Not the function itself: torch.compile has rules for each.
        "_accelerator_isAllocatorInitialized": lambda: torch.cuda.is_initialized(),
        "_accelerator_emptyCache": library.empty_cache,
        "_accelerator_getDeviceStats": answers.memory_stats,
        "_accelerator_resetPeakStats": library.reset_peaks,
        "_accelerator_resetAccumulatedStats": library.reset_totals,
    }.items():
        # Some of them are not in every version.
        if hasattr(extension, name):
            setattr(extension, name, function)
    for name in CHECKPOINT_FUNCTIONS:
        if hasattr(extension, name):
            setattr(extension, name, _refuse_graph_trees)
    if incomplete:
        _refuse_private_pools(torch, incomplete)
    call_after_import("torch._inductor.config", _turn_graph_trees_off)


class _Answers:
    """Answers in the form of PyTorch's C++ functions."""

    def __init__(self, library):
        self._library = library

    def memory_stats(self, device):
        """Returns the counters as nested dictionaries."""
        nested = {}
        for name, value in self._library.memory_stats(device).items():
            *path, last = name.split(".")
            level = nested
            for part in path:
                level = level.setdefault(part, {})
            level[last] = value
        return nested

    def snapshot(self, mempool=None):
        """Returns a snapshot. ``mempool`` is the id of a private pool, (0, 0) for all, and may also
        say whether the history is wanted, as from PyTorch 2.11 on."""
        *pool, with_history = (*(mempool or (0, 0)), True)[:3]
        state = pickle.loads(self._library.snapshot(with_history and _pool_session.has_history()))
        if any(pool):
            state["segments"] = [
                segment for segment in state["segments"] if tuple(segment["segment_pool_id"]) == tuple(pool)
            ]
        return state

    def record_history(self, enabled=None, *_arguments, **_keywords):
        """Starts to keep the history, or ends it for None and False. The other arguments choose
        call stacks and a number of entries, which the pool does not have."""
        _pool_session.keep_history(enabled not in (None, False, "state"))


def _refuse_graph_trees(*_arguments, **_keywords):
    raise RuntimeError(
        "the CUDA graph trees of torch.compile need checkpoints of private pools, which PyTorch does not offer to "
        "allocators such as vramscope's pool: set torch._inductor.config.triton.cudagraph_trees = False"
    )


def _turn_graph_trees_off(config):
    # torch.compile(mode="reduce-overhead") then captures each graph by itself.
    config.triton.cudagraph_trees = False


def _refuse_private_pools(torch, reason):
    """Makes ``torch.cuda.MemPool`` name the cause."""

    def __init__(self, *_arguments, **_keywords):
        raise RuntimeError(f"torch.cuda.MemPool does not work on vramscope's pool: {reason}")

    torch.cuda.MemPool.__init__ = __init__
