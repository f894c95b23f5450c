"""Puts PyTorch on vramscope's pool: ``use_pool``."""

import os

from . import _pool_patches, _pool_session, _watch
from ._call_lock import CallLock
from ._follow import torch_minor
from ._messages import raise_if_of_handler
from ._pool_library import PoolError, PoolLibrary, find_library

#: Setters of PyTorch's allocator object, and the library's functions that they get.
SETTERS = {
    "set_init_fn": "vramscope_init",
    "set_reset_fn": "vramscope_empty_cache",
    "set_memory_fraction_fn": "vramscope_set_memory_fraction",
    "set_record_stream_fn": "vramscope_record_stream",
    "set_begin_allocate_to_pool": "vramscope_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "vramscope_end_allocate_to_pool",
    "set_release_pool": "vramscope_release_pool",
}

_lock = CallLock()
_pool = None


class Pool:
    """vramscope's pool, from which PyTorch allocates."""

    def __init__(self, library, allocator, incomplete):
        #: The library's functions.
        self.library = library
        #: Why ``torch.cuda.MemPool`` does not work; empty if it does.
        self.incomplete = incomplete
        # PyTorch's object, which it uses as long as the process runs.
        self._allocator = allocator

    def memory_stats(self, device=None):
        """Returns the counters of ``torch.cuda.memory_stats()``."""
        import torch

        return torch.cuda.memory_stats(device)

    def set_settings(self, conf):
        """Changes the settings for later requests; the memory limit stays as it is."""
        self.library.configure(conf)

    def mark(self, name):
        """Records a mark, a named moment."""
        self.library.mark(str(name))

    def set_recording(self, enabled):
        """Pauses or resumes the recording."""
        self.library.set_recording(enabled)

    def stop(self):
        """Ends the recording, also one that environment variables started; the pool stays in use.
        Returns False if its file is incomplete."""
        session = _watch._current
        return self.library.close() if session is None else session.stop()


def use_pool(conf=None):
    """Puts PyTorch on vramscope's pool instead of its own allocator. Call it before the program
    uses CUDA.

    ``conf`` has the settings in the notation of ``PYTORCH_CUDA_ALLOC_CONF``, which count if it is
    None. Functions such as ``torch.cuda.memory_stats()`` then answer from the pool. Returns the
    ``Pool``; a second call changes the settings.
    """

    def create_or_change():
        global _pool
        if _pool is not None:
            if conf is not None:
                _pool.set_settings(conf)
            return _pool
        import torch

        minor = _check(torch)
        was_watched = _end_waiting_session()
        library = PoolLibrary(find_library())
        library.configure(conf)
        allocator = _install(torch, library)
        incomplete = library.complete_allocator(minor)
        if minor < 11 and not incomplete:
            incomplete = f"PyTorch {torch.__version__} offers no private pools: use 2.11 or later"
        _pool = Pool(library, allocator, incomplete)
        _pool_patches.install(torch, library, incomplete)
        _pool_session.install(torch, library)
        if was_watched:
            _watch.start(None, None, None, starter=_watch.RUN)
        return _pool

    return _lock.run(create_or_change)


def _check(torch):
    """Returns the minor version of PyTorch 2; raises ``PoolError`` if it cannot use the pool."""
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise PoolError(f"PyTorch {torch.__version__} has no CUDA support, so it uses no GPU memory")
    try:
        minor = torch_minor(torch.__version__)
    except RuntimeError as error:
        raise_if_of_handler(error)
        raise PoolError(str(error)) from None
    session = _watch._current
    if session is not None and not _is_waiting_to_push(session):
        raise PoolError(
            "vramscope follows PyTorch's own allocator already: call use_pool() before watch() or record()"
        )
    if torch.cuda.is_initialized():
        raise PoolError(
            "CUDA is already initialized, so PyTorch keeps its own allocator: call use_pool() at the program's start, "
            "before the first CUDA tensor"
        )
    return minor


def _is_waiting_to_push(session):
    """Returns True for the session of ``vramscope run`` while no device is in use: the pool pushes
    to the server itself."""
    return bool(os.environ.get("VRAMSCOPE_PUSH")) and session.url is None and session.status == "waiting"


def _end_waiting_session():
    """Ends the session of ``vramscope run``; returns True if there was one."""
    session = _watch._current
    if session is not None:
        session._end()
    return session is not None


def _install(torch, library):
    """Makes the library PyTorch's allocator; returns PyTorch's object."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library.path, "vramscope_malloc", "vramscope_free")
    for setter, function in SETTERS.items():
        getattr(allocator.allocator(), setter)(library.address(function))
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise_if_of_handler(error)
        raise PoolError(f"PyTorch keeps its own allocator: {_first_line(error)}") from None
    return allocator


def _first_line(error):
    return str(error).partition("\n")[0]


def current_pool():
    """Returns the pool in use; None on PyTorch's own allocator."""
    return _pool
