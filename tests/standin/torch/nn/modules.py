"""Modules and their hooks."""

from collections import OrderedDict

from .._tensor import Tensor, empty, float32

_global_forward_pre_hooks = OrderedDict()
_global_forward_hooks = OrderedDict()


class RemovableHandle:
    def __init__(self, hooks, hook, extra=None):
        self._hooks, self._extra = hooks, extra
        self.id = id(self)
        hooks[self.id] = hook
        if extra is not None:
            extra[self.id] = True

    def remove(self):
        for hooks in self._hooks, self._extra or {}:
            hooks.pop(self.id, None)


def register_module_forward_pre_hook(hook):
    return RemovableHandle(_global_forward_pre_hooks, hook)


def register_module_forward_hook(hook, *, always_call=False):
    return RemovableHandle(_global_forward_hooks, hook)


class Parameter(Tensor):
    def __init__(self, shape, dtype=float32, device=None):
        super().__init__(shape, dtype, device)
        self.requires_grad = True


class Module:
    _compiled_call_impl = None

    def __init__(self):
        tables = (
            "_parameters", "_modules", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks",
            "_forward_hooks_always_called",
        )
        for name in tables:
            object.__setattr__(self, name, OrderedDict())
        self.training = True

    def __setattr__(self, name, value):
        if isinstance(value, Parameter):
            self._parameters[name] = value
        elif isinstance(value, Module):
            self._modules[name] = value
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name):
        for table in ("_parameters", "_modules"):
            if name in self.__dict__.get(table, {}):
                return self.__dict__[table][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _wrapped_call_impl(self, *args, **kwargs):
        if self._compiled_call_impl is not None:
            return self._compiled_call_impl(*args, **kwargs)
        else:
            return self._call_impl(*args, **kwargs)

    def _call_impl(self, *args, **kwargs):
        if not (self._forward_hooks or self._forward_pre_hooks or _global_forward_hooks or _global_forward_pre_hooks):
            return self.forward(*args, **kwargs)
        for name, hook in (*_global_forward_pre_hooks.items(), *self._forward_pre_hooks.items()):
            if name in self._forward_pre_hooks_with_kwargs:
                changed = hook(self, args, kwargs)
                if changed is not None:
                    args, kwargs = changed
                continue
            changed = hook(self, args)
            if changed is not None:
                args = changed if isinstance(changed, tuple) else (changed,)
        try:
            result = self.forward(*args, **kwargs)
        except Exception:
            for number in self._forward_hooks_always_called:
                self._forward_hooks[number](self, args, None)
            raise
        for hook in (*_global_forward_hooks.values(), *self._forward_hooks.values()):
            changed = hook(self, args, result)
            if changed is not None:
                result = changed
        return result

    __call__ = _wrapped_call_impl

    def register_forward_pre_hook(self, hook, *, with_kwargs=False):
        extra = self._forward_pre_hooks_with_kwargs if with_kwargs else None
        return RemovableHandle(self._forward_pre_hooks, hook, extra)

    def register_forward_hook(self, hook, *, always_call=False):
        return RemovableHandle(self._forward_hooks, hook, self._forward_hooks_always_called if always_call else None)

    def children(self):
        return iter(self._modules.values())

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self):
        return (module for _, module in self.named_modules())

    def named_parameters(self):
        for prefix, module in self.named_modules():
            for name, parameter in module._parameters.items():
                yield f"{prefix}.{name}" if prefix else name, parameter

    def parameters(self):
        return (parameter for _, parameter in self.named_parameters())

    def named_buffers(self):
        return iter(())


class Linear(Module):
    def __init__(self, in_features, out_features, device=None):
        super().__init__()
        self.weight = Parameter((out_features, in_features), device=device)
        self.bias = Parameter((out_features,), device=device)

    def forward(self, x):
        y = empty(*x.shape[:-1], self.weight.shape[0], device=x.device)
        y._inputs = (x, self.weight, self.bias)
        return y


class ReLU(Module):
    def forward(self, x):
        y = empty(*x.shape, device=x.device)
        y._inputs = (x,)
        return y


class ModuleList(Module):
    def __init__(self, modules=()):
        super().__init__()
        for index, module in enumerate(modules):
            self._modules[str(index)] = module

    def __iter__(self):
        return iter(self._modules.values())


class Sequential(ModuleList):
    def __init__(self, *modules):
        super().__init__(modules)

    def forward(self, x):
        for module in self:
            x = module(x)
        return x
