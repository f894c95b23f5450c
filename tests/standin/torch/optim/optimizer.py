"""Optimizers and their hooks."""

import functools
from collections import OrderedDict

from .._tensor import empty, zeros_like
from ..autograd.profiler import record_function
from ..nn.modules import RemovableHandle

_global_optimizer_pre_hooks = OrderedDict()
_global_optimizer_post_hooks = OrderedDict()


def register_optimizer_step_pre_hook(hook):
    return RemovableHandle(_global_optimizer_pre_hooks, hook)


def register_optimizer_step_post_hook(hook):
    return RemovableHandle(_global_optimizer_post_hooks, hook)


class Optimizer:
    def __init__(self, params, defaults):
        self.param_groups = [{"params": list(params), **defaults}]
        self.state = {}
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()
        self._patch_step_function()

    def _patch_step_function(self):
        step = type(self).step
        if not getattr(step, "hooked", False):
            type(self).step = self.profile_hook_step(step)
            type(self).step.hooked = True

    @staticmethod
    def profile_hook_step(func):
        @functools.wraps(func)
        def wrapper(*args, **kwargs):
            self = args[0]
            with record_function(f"Optimizer.step#{type(self).__name__}.step"):
                for hook in (*_global_optimizer_pre_hooks.values(), *self._optimizer_step_pre_hooks.values()):
                    hook(self, args, kwargs)
                out = func(*args, **kwargs)
                for hook in (*self._optimizer_step_post_hooks.values(), *_global_optimizer_post_hooks.values()):
                    hook(self, args, kwargs)
                return out

        return wrapper

    def register_step_pre_hook(self, hook):
        return RemovableHandle(self._optimizer_step_pre_hooks, hook)

    def register_step_post_hook(self, hook):
        return RemovableHandle(self._optimizer_step_post_hooks, hook)

    def _parameters(self):
        return (p for group in self.param_groups for p in group["params"] if p.grad is not None)

    def zero_grad(self, set_to_none=True):
        for parameter in self._parameters():
            parameter.grad = None if set_to_none else parameter.grad


class SGD(Optimizer):
    def __init__(self, params, lr=1e-3, momentum=0.0):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    def step(self, closure=None):
        for parameter in self._parameters():
            if self.param_groups[0]["momentum"] and parameter not in self.state:
                self.state[parameter] = {"momentum_buffer": zeros_like(parameter)}


class Adam(Optimizer):
    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    def step(self, closure=None):
        for parameter in self._parameters():
            if parameter not in self.state:
                names = ("exp_avg", "exp_avg_sq")
                self.state[parameter] = {name: zeros_like(parameter) for name in names}
            # The denominator, a temporary tensor.
            empty(*parameter.shape, device=parameter.device)
