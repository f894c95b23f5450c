"""torch.profiler."""

from ..autograd.profiler import record_function

__all__ = ["record_function"]
