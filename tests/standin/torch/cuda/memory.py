"""torch.cuda.memory: counters and snapshots."""

import ctypes
import pickle
import sys

from .. import _C, _library


def memory_stats(device=None):
    from . import is_initialized

    stats = {}

    def flatten(prefix, value):
        if isinstance(value, dict):
            for name, inner in value.items():
                flatten(f"{prefix}.{name}" if prefix else name, inner)
        else:
            stats[prefix] = value

    if is_initialized():
        flatten("", _C._cuda_memoryStats(device or 0))
    return stats


def memory_allocated(device=None):
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device=None):
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device=None):
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device=None):
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device=None):
    _C._cuda_resetPeakMemoryStats(device or 0)


def reset_accumulated_memory_stats(device=None):
    _C._cuda_resetAccumulatedMemoryStats(device or 0)


def set_per_process_memory_fraction(fraction, device=None):
    from . import _lazy_init

    _lazy_init()
    _C._cuda_setMemoryFraction(fraction, device or 0)


def get_per_process_memory_fraction(device=None):
    return _C._cuda_getMemoryFraction(device or 0)


def caching_allocator_alloc(size, device=None, stream=None):
    return _C._allocate(device or 0, size, stream or 0)


def caching_allocator_delete(mem_ptr):
    _library.free(mem_ptr)


def empty_cache():
    from . import is_initialized

    if is_initialized():
        _library.empty_cache()


def memory_snapshot(mempool_id=None, include_traces=True):
    return _C._cuda_memorySnapshot((*(mempool_id or (0, 0)), include_traces))["segments"]


def _record_memory_history(enabled="all", context="all", stacks="all", max_entries=sys.maxsize, device=None,
                           clear_history=False, compile_context=False, global_record_annotations=False,
                           skip_actions=None, record_pinned_host_memory=False, record_cuda=True):
    _C._cuda_record_memory_history(
        enabled, context, stacks, max_entries, clear_history, compile_context, global_record_annotations,
        skip_actions or [], record_pinned_host_memory, record_cuda,
    )


def _earlier_record_memory_history(enabled="all", context="all", stacks="all", max_entries=sys.maxsize):
    _C._cuda_record_memory_history(enabled, context, stacks, max_entries)


if _C._minor < 14:
    _record_memory_history = _earlier_record_memory_history


def _snapshot(device=None):
    return _C._cuda_memorySnapshot(*() if _C._minor < 7 else (None,))


def _set_memory_metadata(metadata):
    _C._cuda_setMemoryMetadata(metadata)


def _dump_snapshot(filename="dump_snapshot.pickle"):
    with open(filename, "wb") as file:
        pickle.dump(_snapshot(), file)


class CUDAPluggableAllocator:
    def __init__(self, path_to_so_file, alloc_fn_name, free_fn_name):
        library = ctypes.CDLL(path_to_so_file)
        functions = (
            ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in (alloc_fn_name, free_fn_name)
        )
        self._allocator = _C._cuda_customAllocator(*functions)

    def allocator(self):
        return self._allocator


def change_current_allocator(allocator):
    _C._cuda_changeCurrentAllocator(allocator.allocator())


class MemPool:
    """Private pools exist only in PyTorch."""
