"""Puts PyTorch on vramscope's pool (docs/pytorch.md). Create `Vramscope` before any CUDA tensor."""

import ctypes
import json
import os

import torch

# Setters of PyTorch's allocator object and the library functions they receive.
SETTERS = {
    "set_init_fn": "vramscope_init",
    "set_reset_fn": "vramscope_empty_cache",
    "set_memory_fraction_fn": "vramscope_set_memory_fraction",
    "set_record_stream_fn": "vramscope_record_stream",
    "set_begin_allocate_to_pool": "vramscope_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "vramscope_end_allocate_to_pool",
    "set_release_pool": "vramscope_release_pool",
}


class Vramscope:
    def __init__(self, path):
        path = os.path.abspath(path)
        self.library = ctypes.CDLL(path)
        self.library.vramscope_memory_stats_json.restype = ctypes.c_size_t
        self.library.vramscope_memory_stats_json.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t]
        self.allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "vramscope_malloc", "vramscope_free")
        for setter, function in SETTERS.items():
            address = ctypes.cast(getattr(self.library, function), ctypes.c_void_p).value
            getattr(self.allocator.allocator(), setter)(address)
        torch.cuda.memory.change_current_allocator(self.allocator)

    def memory_stats(self, device=0):
        """Returns the counters of torch.cuda.memory_stats()."""
        length = self.library.vramscope_memory_stats_json(device, None, 0)
        text = ctypes.create_string_buffer(length + 1)
        self.library.vramscope_memory_stats_json(device, text, length + 1)
        return json.loads(text.value or "{}")

    def mark(self, name):
        self.library.vramscope_mark(name.encode())

    def scopes(self, net):
        """Opens a scope for the forward pass of each module, so that blocks name their module."""
        begin, end = self.library.vramscope_scope_begin, self.library.vramscope_scope_end
        # A hook's return value would replace the module's arguments.
        begin.restype = end.restype = None
        for path, module in net.named_modules():
            if path:
                name = path.rpartition(".")[2].encode()
                module.register_forward_pre_hook(lambda *_, name=name: begin(name, b"activation"))
                module.register_forward_hook(lambda *_: end(), always_call=True)

    def set_recording(self, recording):
        self.library.vramscope_set_recording(int(recording))

    def stop(self):
        """Ends the recording; returns True if its file is complete."""
        return self.library.vramscope_stop() == 0
