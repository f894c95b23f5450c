"""Tensors without values."""

import math
import sys

from . import _C, _library, _pinned


class dtype:
    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize

    def __repr__(self):
        return f"torch.{self.name}"


uint8 = dtype("uint8", 1)
float16 = dtype("float16", 2)
float32 = dtype("float32", 4)
float64 = dtype("float64", 8)
int64 = dtype("int64", 8)


class device:
    def __init__(self, type, index=None):
        if isinstance(type, device):
            type, index = type.type, type.index
        name, _, number = type.partition(":")
        self.type, self.index = name, int(number) if number else index

    def __eq__(self, other):
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self):
        return hash((self.type, self.index))

    def __repr__(self):
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{index})"


class Tensor:
    """Memory of a device, which is freed with the tensor. Tensors of the CPU have pinned memory or
    none."""

    def __init__(self, shape, dtype=float32, device_=None, address=None, pin_memory=False):
        self.shape, self.dtype = tuple(shape), dtype
        self.device = device(device_ or "cpu")
        self.requires_grad = False
        self.grad = None
        #: The tensors that this one was computed from.
        self._inputs = ()
        self._address = 0
        if self.device.type == "cuda":
            self.device = device("cuda", self.device.index or 0)
            bytes_ = self.numel() * dtype.itemsize
            self._address = _C._allocate(self.device.index, bytes_) if address is None else address
        elif pin_memory:
            self._address = _pinned.allocator.allocate(self.numel() * dtype.itemsize)

    def __del__(self):
        if getattr(self, "_address", 0):
            (_library if self.is_cuda else _pinned.allocator).free(self._address)

    @property
    def is_cuda(self):
        return self.device.type == "cuda"

    def data_ptr(self):
        return self._address

    def untyped_storage(self):
        """Returns the tensor itself: no two tensors share memory."""
        return self

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return self.dtype.itemsize

    def backward(self):
        sys.modules["torch"].autograd.backward(self)

    def _run_backward(self):
        """Allocates the gradients of all parameters that this tensor was computed from, on a thread
        without Python frames."""
        waiting, seen, parameters = [self], set(), []
        while waiting:
            tensor = waiting.pop()
            if id(tensor) not in seen:
                seen.add(id(tensor))
                waiting.extend(tensor._inputs)
                if tensor.requires_grad:
                    parameters.append(tensor)
        fresh = [tensor for tensor in parameters if tensor.grad is None]
        if self.device.type == "cpu":
            for tensor in fresh:
                tensor.grad = Tensor(tensor.shape, tensor.dtype)
            return
        parts = [part for tensor in fresh for part in tensor._parts()]
        sizes = [part.numel() * part.element_size() for part in parts]
        gradients = []
        for part, size, address in zip(parts, sizes, _library.backward(self.device.index, sizes)):
            if not address:
                _C._raise_out_of_memory(self.device.index, size)
            gradients.append(Tensor(part.shape, part.dtype, part.device, address))
        waiting = iter(gradients)
        for tensor in fresh:
            tensor.grad = tensor._made_of(waiting)

    def _parts(self):
        """Returns the tensors that have this tensor's memory."""
        return [self]

    def _made_of(self, parts):
        """Returns a tensor like this one, made of the next of ``parts``."""
        return next(parts)


class WrapperTensor(Tensor):
    """A tensor that consists of others and has no memory of its own, as PyTorch's ``DTensor`` and
    quantized tensors."""

    def __init__(self, **inner):
        first = next(iter(inner.values()))
        super().__init__(first.shape, first.dtype, first.device, address=0)
        self._names = list(inner)
        self.__dict__.update(inner)

    def __tensor_flatten__(self):
        return self._names, None

    def data_ptr(self):
        raise RuntimeError("Attempted to access the data pointer on an invalid python storage.")

    def _parts(self):
        return [part for name in self._names for part in getattr(self, name)._parts()]

    def _made_of(self, parts):
        return WrapperTensor(**{name: getattr(self, name)._made_of(parts) for name in self._names})


def empty(*size, dtype=float32, device=None, pin_memory=False):
    shape = size[0] if len(size) == 1 and isinstance(size[0], (tuple, list)) else size
    return Tensor(shape, dtype, device, pin_memory=pin_memory)


def zeros(*size, dtype=float32, device=None):
    return empty(*size, dtype=dtype, device=device)


def zeros_like(tensor):
    return tensor._made_of(zeros(*part.shape, dtype=part.dtype, device=part.device) for part in tensor._parts())
