"""torch.cuda: initialization and devices."""

import threading
import traceback
import types

from .. import _C, _library
from . import memory
from .memory import (
    MemPool, caching_allocator_alloc, caching_allocator_delete, empty_cache, get_per_process_memory_fraction,
    max_memory_allocated, max_memory_reserved, memory_allocated, memory_reserved, memory_snapshot, memory_stats,
    reset_accumulated_memory_stats, reset_peak_memory_stats, set_per_process_memory_fraction,
)

OutOfMemoryError = _C.OutOfMemoryError

_initialized = False
_tls = threading.local()
_initialization_lock = threading.Lock()
_queued_calls = []


class DeferredCudaCallError(Exception):
    """An error of a call that waited for the initialization."""


def is_available():
    return _library.DEVICES > 0


def is_initialized():
    return _initialized and not _C._cuda_isInBadFork()


def _lazy_call(callable, **_):
    with _initialization_lock:
        if is_initialized():
            callable()
        else:
            _queued_calls.append((callable, traceback.format_stack()))


def init():
    _lazy_init()


def _lazy_init():
    global _initialized
    if is_initialized() or hasattr(_tls, "is_initializing"):
        return
    with _initialization_lock:
        if is_initialized():
            return
        if _C._cuda_isInBadFork():
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
        if not is_available():
            raise RuntimeError("Found no NVIDIA driver on your system.")
        _C._cuda_init()
        _tls.is_initializing = True
        try:
            for queued_call, origin in _queued_calls:
                try:
                    queued_call()
                except Exception as error:
                    raise DeferredCudaCallError(f"CUDA call failed lazily: {error}\n{''.join(origin)}") from error
        finally:
            delattr(_tls, "is_initializing")
        _initialized = True


def device_count():
    return _library.DEVICES


def get_device_properties(device=None):
    _lazy_init()
    if not 0 <= (device or 0) < _library.DEVICES:
        raise AssertionError("Invalid device id")
    return types.SimpleNamespace(name="Stand-in GPU", total_memory=_library.DEVICE_BYTES, major=9, minor=0)


def current_device():
    _lazy_init()
    return 0


def synchronize(device=None):
    _C._use_device(device or 0)
