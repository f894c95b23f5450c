"""torch.nn: modules, called through the functions that PyTorch calls them through."""

from . import modules
from .modules import Linear, Module, ModuleList, Parameter, ReLU, Sequential

__all__ = ["Linear", "Module", "ModuleList", "Parameter", "ReLU", "Sequential", "modules"]
