"""Loads the stand-in's libc10_cuda.so. Environment variables:

- ``STANDIN_LIBRARY``: the library's path.
- ``STANDIN_TORCH_VERSION``: the version of PyTorch, ``2.11.0+standin`` by default.
- ``STANDIN_DEVICES``: the number of devices, 1 by default.
"""

import ctypes
import json
import os

VERSION = os.environ.get("STANDIN_TORCH_VERSION", "2.11.0+standin")
DEVICES = int(os.environ.get("STANDIN_DEVICES", "1"))
DEVICE_BYTES = 16 << 30

_u64 = ctypes.c_uint64


class Stats(ctypes.Structure):
    """Counters of a device (``Stats`` in ``device_allocator.h``)."""

    _fields_ = [
        (name, _u64)
        for name in (
            "allocated_bytes", "peak_allocated_bytes", "reserved_bytes", "peak_reserved_bytes", "requested_bytes",
            "blocks", "segments", "allocations", "frees", "retries", "ooms",
        )
    ]


class LogEntry(ctypes.Structure):
    """A trace entry that the allocator logged."""

    _fields_ = [(name, _u64) for name in ("action", "address", "size", "stream", "time")]


class StormCounts(ctypes.Structure):
    """What a storm did."""

    _fields_ = [(name, _u64) for name in ("allocations", "frees", "failures", "nanoseconds")]


_library = ctypes.CDLL(os.environ["STANDIN_LIBRARY"])
_library.standin_alloc.argtypes = [ctypes.c_int, _u64, _u64]
_library.standin_alloc.restype = _u64
_library.standin_free.argtypes = [_u64]
_library.standin_free.restype = ctypes.c_bool
_library.standin_set_limit.argtypes = [ctypes.c_int, _u64]
_library.standin_snapshot_json.restype = ctypes.c_void_p
_library.standin_snapshot_of_unknown_pool.argtypes = [_u64, _u64]
_library.standin_free_text.argtypes = [ctypes.c_void_p]
_library.standin_log.argtypes = [ctypes.c_int, _u64, _u64, ctypes.POINTER(LogEntry)]
_library.standin_log.restype = _u64
_library.standin_backward.argtypes = [ctypes.c_int, _u64, ctypes.POINTER(_u64), ctypes.POINTER(_u64)]
_library.standin_storm.argtypes = [
    ctypes.c_int, ctypes.c_double, ctypes.c_double, ctypes.c_int, _u64, ctypes.POINTER(StormCounts),
]

init = _library.standin_init
empty_cache = _library.standin_empty_cache
set_limit = _library.standin_set_limit
alloc = _library.standin_alloc
free = _library.standin_free


def stats(device):
    counters = Stats()
    _library.standin_stats(device, ctypes.byref(counters))
    return counters


def snapshot():
    text = _library.standin_snapshot_json()
    try:
        state = json.loads(ctypes.string_at(text))
    finally:
        _library.standin_free_text(text)
    for segment in state["segments"]:
        segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
    return state


def snapshot_of_unknown_pool(pool):
    """Returns the snapshot of a private pool that does not exist."""
    _library.standin_snapshot_of_unknown_pool(*pool)
    return {"segments": [], "device_traces": [], "external_annotations": [], "allocator_settings": {}}


def log(device):
    """Returns all trace entries of a device: action, address, size, stream, time."""
    entries = []
    part = (LogEntry * 4096)()
    while count := _library.standin_log(device, len(entries), len(part), part):
        entries += [(e.action, e.address, e.size, e.stream, e.time) for e in part[:count]]
    return entries


def backward(device, sizes):
    """Allocates blocks on a thread without Python frames; returns their addresses."""
    addresses = (_u64 * len(sizes))()
    _library.standin_backward(device, len(sizes), (_u64 * len(sizes))(*sizes), addresses)
    return list(addresses)


def storm(threads, events_per_second, seconds, seed=1):
    """Allocates and frees from threads without Python frames; returns what they did."""
    counts = StormCounts()
    _library.standin_storm(threads, events_per_second, seconds, DEVICES, seed, ctypes.byref(counts))
    return counts
