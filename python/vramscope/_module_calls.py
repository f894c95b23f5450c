"""Observes the calls of modules (``torch.nn.Module``).

Hooks of a module change what the program sees of it: ``torch.jit.script`` compiles them, copies and
files contain them, and ``torch.cuda.make_graphed_callables`` refuses them. So the interpreter
reports the calls. Python 3.10 and 3.11 cannot do that: there, modules get hooks.
"""

import collections
import contextlib
import sys
import types
import weakref

from . import _monitoring
from ._frames import variable
from ._messages import call_harmlessly, parameter_count

#: By the address of its code object: the observed calls of a function that runs modules.
_observed = {}
#: Weak references to observed modules that were freed.
_freed = collections.deque()
#: PyTorch's function that collects the hooks which ``torch.jit.script`` compiles.
_original_hook_stubs = None


class Observer:
    """Calls ``begin(module, arguments)`` before each call of a module, and ``end(module)`` after
    it, also if it raises, until ``remove`` or until the module is freed. ``arguments`` is a list.
    Errors in the two are ignored."""

    def __init__(self, module, begin, end=None):
        self.begin, self.end = begin, end
        self._address = id(module)
        self._hooks = []
        self._calls = None
        if _monitoring.is_available():
            code = _called_function(module).__code__
            # The thread that follows the allocator observes modules, too.
            with _monitoring.lock:
                forget_freed()
                self._calls = _observed.get(id(code)) or _FunctionCalls(code)
                self._calls.add(module, self)
        else:
            self._add_hooks(module)

    def remove(self):
        """Ends to observe."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        calls, self._calls = self._calls, None
        if calls is not None:
            with _monitoring.lock:
                calls.remove(self._address, self)
                forget_freed()

    def _add_hooks(self, module):
        _leave_out_of_scripts()

        def begin(module, arguments=(), keywords=None):
            call_harmlessly(self.begin, module, [*arguments, *(keywords or {}).values()])

        self._hooks = [module.register_forward_pre_hook(ModuleHook(self, begin), with_kwargs=True)]
        if self.end is not None:
            end = ModuleHook(self, lambda module, *_: call_harmlessly(self.end, module))
            self._hooks.append(module.register_forward_hook(end, always_call=True))


class _ModuleReference(weakref.ref):
    """A weak reference to a module, and the observation that it is part of.

    When the module is freed, the reference is added to ``_freed``: not by a Python function, in
    which the interpreter would run signal handlers and print what they raise.
    """

    __slots__ = ("address", "calls")

    def __new__(cls, module, _calls):
        return super().__new__(cls, module, _freed.append)

    def __init__(self, module, calls):
        super().__init__(module, _freed.append)
        self.address, self.calls = id(module), calls


def forget_freed():
    """Ends to observe modules that were freed."""
    while _freed:
        try:
            reference = _freed.popleft()
        except IndexError:
            # Another thread has taken it.
            return
        with _monitoring.lock:
            reference.calls.forget(reference)


class _FunctionCalls:
    """The observation of a function through which modules are called. It keeps neither the modules
    nor the function, which may have a closure of the program."""

    def __init__(self, code):
        self._code = code
        #: By address: a weak reference to each module that exists, and what observes it.
        self._modules = {}
        #: Addresses of the modules that have an observer with `end`.
        self._with_end = set()
        self._observation = None
        #: Whether calls are reported, and their ends.
        self._reported = False, False

    def add(self, module, observer):
        """Adds what observes a module."""
        address = id(module)
        reference, observers = self._modules.get(address, (None, ()))
        if reference is None or reference() is not module:
            # A later module may get the address.
            reference, observers = _ModuleReference(module, self), ()
        self._set(address, reference, (*observers, observer))

    def remove(self, address, observer):
        """Removes what observes the module at an address."""
        reference, observers = self._modules.get(address, (None, ()))
        self._set(address, reference, tuple(other for other in observers if other is not observer))

    def forget(self, reference):
        """Removes all that observes a module that was freed."""
        known, _ = self._modules.get(reference.address, (None, ()))
        if known is reference:
            self._set(reference.address, reference, ())

    def _set(self, address, reference, observers):
        """Sets what observes the module at an address. Its cost does not depend on the number of
        modules: a model may have thousands."""
        if observers:
            self._modules[address] = reference, observers
        else:
            self._modules.pop(address, None)
        if any(observer.end is not None for observer in observers):
            self._with_end.add(address)
        else:
            self._with_end.discard(address)
        self._update()

    def _update(self):
        """Lets the interpreter report the calls while a module is observed, and their ends if an
        observer wants them."""
        while True:
            wanted = bool(self._modules), bool(self._with_end)
            # The interpreter prepares code anew for each change.
            if wanted != self._reported:
                self._report(*wanted)
                self._reported = wanted
            # A signal handler may have changed `_modules` meanwhile.
            if wanted == (bool(self._modules), bool(self._with_end)):
                return

    def _report(self, is_observed, has_end):
        if is_observed:
            _observed[id(self._code)] = self
            end = self._end if has_end else None
            self._observation = _monitoring.Observation(self._code, self._begin, end, end)
        else:
            if _observed.get(id(self._code)) is self:
                del _observed[id(self._code)]
            if self._observation is not None:
                self._observation.end()

    def _called(self, frame):
        """Returns the module that a frame of the function calls, and what observes it."""
        module = variable(frame, frame.f_code.co_varnames[0])
        reference, observers = self._modules.get(id(module), (None, ()))
        return module, observers if reference is not None and reference() is module else ()

    def _begin(self, frame):
        if _freed:
            forget_freed()
        module, observers = self._called(frame)
        if observers:
            # All of them have a value when the function starts.
            arguments = [variable(frame, name) for name in frame.f_code.co_varnames[1 : parameter_count(frame.f_code)]]
            for observer in observers:
                call_harmlessly(observer.begin, module, arguments)

    def _end(self, frame):
        module, observers = self._called(frame)
        for observer in observers:
            if observer.end is not None:
                call_harmlessly(observer.end, module)


def _called_function(module):
    """Returns the Python function that runs once in each call of a module, and in as few calls of
    other modules as possible."""
    kind = type(module)
    general = sys.modules["torch"].nn.Module._wrapped_call_impl
    call, forward = kind.__call__, getattr(kind, "forward", None)
    if isinstance(call, types.FunctionType) and call is not general:
        return call
    # A program may replace `forward`, and a compiler both.
    is_own = "forward" not in module.__dict__ and module.__dict__.get("_compiled_call_impl") is None
    is_method = isinstance(forward, types.FunctionType) and forward.__code__.co_argcount > 0
    return forward if is_own and is_method else general


class ModuleHook:
    """A hook of a module that calls ``function``.

    A copy of the module, or a file that it is saved to, has a hook without effect instead.
    """

    #: Functions have a name, which PyTorch may ask for.
    __name__ = "vramscope_hook"

    def __init__(self, observer, function):
        self.observer = observer
        self._function = function

    def __call__(self, *arguments):
        self._function(*arguments)

    def __deepcopy__(self, _memo):
        return _no_hook()

    def __reduce__(self):
        return _no_hook().__reduce__()


def _no_hook():
    """Returns a function that accepts all arguments, returns None and can be pickled, also for a
    program without vramscope."""
    return contextlib.nullcontext().__exit__


def _leave_out_of_scripts():
    """Makes ``torch.jit.script`` compile modules without our hooks, which are then removed."""
    global _original_hook_stubs
    recursive = sys.modules.get("torch.jit._recursive")
    original = getattr(recursive, "get_hook_stubs", None)
    if original is None or _original_hook_stubs is not None:
        return
    _original_hook_stubs = original

    def get_hook_stubs(nn_module):
        for hooks in nn_module._forward_pre_hooks, nn_module._forward_hooks:
            for hook in list(hooks.values()):
                if isinstance(hook, ModuleHook):
                    hook.observer.remove()
        return original(nn_module)

    recursive.get_hook_stubs = get_hook_stubs
