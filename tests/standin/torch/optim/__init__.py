"""torch.optim: optimizers that allocate their state."""

from . import optimizer
from .optimizer import SGD, Adam, Optimizer

__all__ = ["SGD", "Adam", "Optimizer", "optimizer"]
