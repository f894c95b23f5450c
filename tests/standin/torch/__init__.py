"""A stand-in for PyTorch, for tests of vramscope without PyTorch and without a GPU.

It computes nothing. Tensors of device ``cuda`` have addresses of an allocator that decides as
PyTorch's does (``tests/standin/c10_cuda.cpp``) and calls trackers as PyTorch's does; the memory
does not exist. Names and call paths that vramscope depends on are PyTorch's.
"""

import types

from . import _library

__version__ = _library.VERSION

from . import _C
from ._tensor import (
    Tensor, WrapperTensor, device, dtype, empty, float16, float32, float64, int64, uint8, zeros, zeros_like,
)
from . import autograd, cuda, nn, optim, profiler

compiler = types.SimpleNamespace(is_compiling=lambda: False)
"""The module ``torch.compiler``, of a program that compiles nothing."""

OutOfMemoryError = _C.OutOfMemoryError
"""Raised if a device has no memory for a request."""

__all__ = [
    "OutOfMemoryError", "Tensor", "WrapperTensor", "autograd", "compiler", "cuda", "device", "dtype", "empty",
    "float16", "float32", "float64", "int64", "nn", "optim", "profiler", "uint8", "zeros", "zeros_like",
]
