"""Names for parts of the program: ``vramscope.scope``."""

import functools
import inspect
import sys

from . import _native
from ._frames import variable
from ._per_thread import PerThreadList

#: What memory can be used for; as in ``docs/watch.md``.
CATEGORIES = (
    "parameter",
    "gradient",
    "optimizer state",
    "activation",
    "input",
    "temporary",
    "workspace",
    "cache",
    "communication",
)

#: The scopes that are open in each thread, outermost first.
_open_scopes = PerThreadList()


class scope:
    """Names a part of the program: requests for memory in it have the scope, and the category if
    one is given.

        with vramscope.scope("evaluate"):
            ...

        @vramscope.scope("preprocess", category="input")
        def preprocess(batch):
            ...

    Scopes nest, in each other and in modules: a request has the path of all that it is in. A scope
    is of one thread. It stays open while a generator or coroutine that opened it waits, so that
    other code of the thread is in it, too; as a decorator it is open only while the generator or
    coroutine runs.
    """

    def __init__(self, name, category=None):
        if not isinstance(name, str):
            raise TypeError(f"a scope's name must be a text, not {name!r}")
        if not name:
            raise ValueError("a scope's name must not be empty")
        if category is not None and category not in CATEGORIES:
            raise ValueError(f"no category {category!r}: use one of {', '.join(CATEGORIES)}")
        self._name = name
        self._category = category

    def __repr__(self):
        return f"scope({self._name!r}, {self._category!r})"

    def __enter__(self):
        self._open(_enclosing_module(sys._getframe(1)))
        return self

    def __exit__(self, *_):
        self._close()

    def _open(self, module):
        """Opens the scope in the module at an address, or in no module (0)."""
        entries = _open_scopes.items
        # Not the address: the scope may be defined again when the module is gone.
        entry = _Entry(self, _native.enclosing_module_name(module) if module else "")
        entry.define(entries[-1].number if entries else 0)
        entries.append(entry)
        _native.enter_scope(entry.number)

    def _close(self):
        """Closes the scope in this thread."""
        entries = _open_scopes.items
        index = next((index for index in reversed(range(len(entries))) if entries[index].scope is self), None)
        if index is None:
            # A generator that began in another thread, where the scope stays open.
            return
        del entries[index]
        # Scopes that are still open, because a generator left this one before them.
        for inner in range(index, len(entries)):
            entries[inner].define(entries[inner - 1].number if inner else 0)
        _native.enter_scope(entries[-1].number if entries else 0)

    def __call__(self, function):
        if inspect.isasyncgenfunction(function):
            raise TypeError("an asynchronous generator cannot be decorated with a scope: use `with` in it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*arguments, **keywords):
                return await _Awaitable(self, function(*arguments, **keywords))

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*arguments, **keywords):
                return (yield from _steps(self, function(*arguments, **keywords)))

        else:

            @functools.wraps(function)
            def wrapper(*arguments, **keywords):
                with self:
                    return function(*arguments, **keywords)

        return wrapper


class _Entry:
    """A scope that is open in a thread."""

    __slots__ = ("scope", "module", "number")

    def __init__(self, scope, module):
        self.scope = scope
        self.module = module
        self.number = 0

    def define(self, parent):
        """Sets the scope's number in the scope with the number ``parent``."""
        self.number = _native.define_scope(self.scope._name, self.scope._category, parent, self.module)


class _Awaitable:
    """A coroutine that is in a scope while it runs, and not while it waits."""

    def __init__(self, scope, coroutine):
        self._scope, self._coroutine = scope, coroutine

    def __await__(self):
        return _steps(self._scope, self._coroutine)


def _steps(scope, inner):
    """Runs a generator or a coroutine, in a scope between its points of waiting."""
    resume, value = inner.send, None
    while True:
        try:
            with scope:
                yielded = resume(value)
        except StopIteration as end:
            return end.value
        try:
            value = yield yielded
            resume = inner.send
        except GeneratorExit:
            with scope:
                inner.close()
            raise
        except BaseException as error:
            value = error
            resume = inner.throw


def enter_again():
    """Enters the scopes that are open in this thread again, in a forked child."""
    entries = _open_scopes.items
    for index, entry in enumerate(entries):
        entry.define(entries[index - 1].number if index else 0)
    if entries:
        _native.enter_scope(entries[-1].number)


def _enclosing_module(frame):
    """Returns the address of the innermost module (``torch.nn.Module``) that calls ``frame``; 0
    outside of modules."""
    torch = sys.modules.get("torch")
    call = getattr(getattr(getattr(torch, "nn", None), "Module", None), "_wrapped_call_impl", None)
    code = getattr(call, "__code__", None)
    if code is None or code.co_argcount == 0:
        return 0
    while frame is not None:
        if frame.f_code is code:
            return id(variable(frame, code.co_varnames[0]))
        frame = frame.f_back
    return 0
