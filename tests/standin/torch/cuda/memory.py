"""torch.cuda.memory: counters and snapshots."""

from .. import _C, _library


def memory_stats(device=None):
    counters = _library.stats(device or 0)
    stats = {}
    for name in ("allocated_bytes", "reserved_bytes", "requested_bytes"):
        stats[f"{name}.all.current"] = getattr(counters, name)
        stats[f"{name}.all.peak"] = getattr(counters, f"peak_{name}", 0)
    stats["active_bytes.all.current"] = counters.allocated_bytes
    stats["segment.all.current"] = counters.segments
    stats["allocation.all.current"] = counters.blocks
    stats["num_alloc_retries"] = counters.retries
    stats["num_ooms"] = counters.ooms
    return stats


def memory_allocated(device=None):
    return memory_stats(device)["allocated_bytes.all.current"]


def memory_reserved(device=None):
    return memory_stats(device)["reserved_bytes.all.current"]


def empty_cache():
    from . import is_initialized

    if is_initialized():
        _library.empty_cache()


def _snapshot(device=None):
    return _C._cuda_memorySnapshot(*() if _C._minor < 7 else (None,))
