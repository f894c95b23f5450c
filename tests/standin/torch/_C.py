"""The functions of PyTorch's extension module that vramscope uses."""

import os
import threading

from . import _library, _pinned, _pluggable

_minor = int(_library.VERSION.split(".")[1])
#: Devices that have been used.
_contexts = set()
_observers = []
_is_initialized = False
#: The process that initialized CUDA.
_initializer = None
#: True while the history of device memory is recorded.
_has_history = False
#: The text that each thread adds to its requests.
_local = threading.local()


class OutOfMemoryError(RuntimeError):
    """Raised if a device has no memory for a request."""


def _cuda_isInBadFork():
    # As in PyTorch, known before Python's functions for a fork are called.
    return _initializer not in (None, os.getpid())


def _cuda_init():
    global _is_initialized, _initializer
    _library.init(_library.DEVICES)
    _is_initialized, _initializer = True, os.getpid()


def _cuda_hasPrimaryContext(device):
    if not 0 <= device < _library.DEVICES:
        raise RuntimeError("invalid device")
    return device in _contexts


def _use_device(device):
    """Initializes CUDA and creates the device's context, as the first use of a device does."""
    from . import cuda

    cuda._lazy_init()
    if not 0 <= device < _library.DEVICES:
        raise RuntimeError("CUDA error: invalid device ordinal")
    _contexts.add(device)


def _raise_out_of_memory(device, size):
    stats = _library.stats(device)
    for observer in _observers:
        observer(device, size, _library.DEVICE_BYTES, _library.DEVICE_BYTES - stats.reserved_bytes)
    raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")


def _allocate(device, size, stream=0):
    _use_device(device)
    address = _library.alloc(device, size, stream)
    if address == 0:
        _raise_out_of_memory(device, size)
    return address


def _cuda_customAllocator(alloc_fn, free_fn):
    return _pluggable.Allocator(alloc_fn, free_fn)


def _cuda_changeCurrentAllocator(allocator):
    _pluggable.change(allocator, _is_initialized)


def _cuda_setMemoryFraction(fraction, device):
    _pluggable.current.functions["set_memory_fraction_fn"](fraction, device)


def _cuda_getMemoryFraction(device):
    _pluggable.check_native("getMemoryFraction")
    return 1.0


def _cuda_resetPeakMemoryStats(device):
    _pluggable.check_native("resetPeakStats")


def _cuda_resetAccumulatedMemoryStats(device):
    _pluggable.check_native("resetAccumulatedStats")


def _cuda_record_memory_history(enabled, *arguments):
    """The last two of ten arguments, from 2.14 on, are whether pinned host memory and device memory
    are recorded. As in PyTorch, device memory is not recorded any more if it is left out."""
    global _has_history
    _pluggable.check_native("recordHistory")
    pinned, cuda = arguments[-2:] if _minor >= 14 else (False, True)
    _has_history = enabled is not None and cuda
    if enabled is None or pinned:
        _pinned.allocator.has_history = enabled is not None


def _set_memory_metadata(metadata):
    if not isinstance(metadata, str):
        raise TypeError("_cuda_setMemoryMetadata(): incompatible function arguments")
    _local.metadata = metadata


if _minor >= 10:
    _cuda_setMemoryMetadata = _set_memory_metadata


def _cuda_isHistoryEnabled():
    return _has_history


def _cuda_hostMemoryStats():
    return _pinned.allocator.stats()


def _cuda_memoryStats(device):
    _pluggable.check_native("getDeviceStats")
    counters = _library.stats(device)
    stats = {}
    for name in ("allocated_bytes", "reserved_bytes", "requested_bytes"):
        peak = getattr(counters, f"peak_{name}", 0)
        stats[name] = {"all": {"current": getattr(counters, name), "peak": peak}}
    stats["active_bytes"] = {"all": {"current": counters.allocated_bytes}}
    stats["segment"] = {"all": {"current": counters.segments}}
    stats["allocation"] = {"all": {"current": counters.blocks}}
    stats["num_alloc_retries"] = counters.retries
    stats["num_ooms"] = counters.ooms
    return stats


def _cuda_attach_out_of_memory_observer(observer):
    _pluggable.check_native("attachOutOfMemoryObserver")
    _observers.append(observer)


def _cuda_memorySnapshot(*arguments):
    """The environment variable ``STANDIN_SNAPSHOT=none`` stands for an allocator without snapshots.

    Before 2.7 there is no argument, then an optional pool, and from 2.11 on also a flag for the
    history. From 2.14 on, pinned host memory is in every snapshot while its history is recorded."""
    _pluggable.check_native("snapshot")
    if os.environ.get("STANDIN_SNAPSHOT") == "none":
        raise RuntimeError("this allocator does not support snapshots")
    if _minor < 7:
        is_valid = not arguments
    elif len(arguments) != 1:
        is_valid = False
    else:
        (pool,) = arguments
        is_valid = pool is None or isinstance(pool, tuple) and len(pool) in ((2, 3) if _minor >= 11 else (2,))
    if not is_valid:
        raise TypeError(f"_cuda_memorySnapshot(): incompatible function arguments: {arguments}")
    pool = (arguments[0] or (0, 0))[:2] if arguments else (0, 0)
    state = _library.snapshot() if pool == (0, 0) else _library.snapshot_of_unknown_pool(pool)
    if _minor >= 14:
        state["host_segments"], state["host_traces"] = _pinned.allocator.segments(), []
    return state
