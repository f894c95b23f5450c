"""Pluggable allocators. ``STANDIN_C10`` is the path of the stand-in for libc10.so."""

import ctypes
import os

from . import _library

#: The setters of PyTorch's class, and the types of their functions.
_SETTERS = {
    "set_init_fn": ctypes.CFUNCTYPE(None, ctypes.c_int),
    "set_reset_fn": ctypes.CFUNCTYPE(None),
    "set_memory_fraction_fn": ctypes.CFUNCTYPE(None, ctypes.c_double, ctypes.c_int),
    "set_record_stream_fn": ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p),
    "set_begin_allocate_to_pool": ctypes.c_void_p,
    "set_end_allocate_to_pool_fn": ctypes.c_void_p,
    "set_release_pool": ctypes.c_void_p,
}
_MESSAGE_BYTES = 4096

#: The allocator in use; None for PyTorch's own.
current = None


class Allocator:
    """PyTorch's object for an allocator from a library."""

    def __init__(self, alloc_fn, free_fn):
        self._c10 = ctypes.CDLL(os.environ["STANDIN_C10"])
        self._alloc_fn = ctypes.c_void_p(alloc_fn)
        self._free_fn = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)(free_fn)
        self.functions = {}
        #: Size and device of each block.
        self._blocks = {}
        for name, kind in _SETTERS.items():
            setattr(self, name, self._setter(name, kind))

    def _setter(self, name, kind):
        def set_function(address):
            self.functions[name] = kind(address)

        return set_function

    def allocate(self, device, size, stream=0, on_thread=False):
        from ._C import OutOfMemoryError

        address = ctypes.c_void_p()
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        outcome = self._c10.standin_call_allocator(
            self._alloc_fn, ctypes.c_size_t(size), device, ctypes.c_void_p(stream), on_thread, ctypes.byref(address),
            message, ctypes.c_size_t(_MESSAGE_BYTES),
        )
        if outcome:
            raise (OutOfMemoryError if outcome == 1 else RuntimeError)(message.value.decode())
        self._blocks[address.value] = size, device
        return address.value

    def free(self, address):
        self._free_fn(address, *self._blocks.pop(address), None)
        return True

    def backward(self, device, sizes):
        return [self.allocate(device, size, on_thread=True) for size in sizes]


def change(allocator, is_initialized):
    """Makes an allocator the current one."""
    global current
    if is_initialized:
        raise RuntimeError("Can't swap an already initialized allocator")
    current = allocator
    _library.init = allocator.functions["set_init_fn"]
    _library.alloc, _library.free, _library.backward = allocator.allocate, allocator.free, allocator.backward
    _library.empty_cache = allocator.functions["set_reset_fn"]


def check_native(function):
    """Raises PyTorch's error for a function that pluggable allocators do not have."""
    if current is not None:
        raise RuntimeError(f"CUDAPluggableAllocator does not yet support {function}.")
