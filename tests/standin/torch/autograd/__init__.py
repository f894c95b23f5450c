"""torch.autograd."""

from . import profiler

__all__ = ["profiler"]
