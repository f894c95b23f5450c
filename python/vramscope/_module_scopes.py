"""Scopes of modules on vramscope's pool, which has no call stacks to find the modules in."""

import sys

from ._module_calls import Observer, forget_freed
from ._modules import names_in
from ._object_table import ObjectTable
from ._per_thread import PerThreadList

#: What memory that is requested in a module's forward pass is used for.
CATEGORY = "activation"


class ModuleScopes:
    """Gives the forward pass of modules a scope, with the names that the hook gives them."""

    def __init__(self, library):
        self._library = library
        #: What observes each module, and the module's name, as ``GPT/blocks/0``.
        self._modules = ObjectTable()
        self._is_compiling = sys.modules["torch"].compiler.is_compiling
        #: The calls of modules of each thread, outermost first: the module's address, its name, and
        #: whether the call has a scope. On Python 3.10 and 3.11, a call that ends by a
        #: KeyboardInterrupt stays.
        self._calls = PerThreadList()

    def add(self, model):
        """Names a model's modules. A module that has a name gets the new one."""
        names = {id(module): name for module, name in names_in(model)}
        for module in model.modules():
            observer, _ = self._modules.get(module, (None, ""))
            if observer is None:
                observer = Observer(module, self._begin, self._end)
            self._modules.set(module, (observer, names.get(id(module), "")))

    def remove(self):
        """Ends to give modules scopes."""
        for observer, _ in self._modules.clear():
            observer.remove()
        forget_freed()

    def _begin(self, module, *_):
        if not self._is_compiling():
            calls = self._calls.items
            _, name = self._modules.get(module, (None, ""))
            part = _inner_part(name, calls[-1][1] if calls else "")
            if part:
                self._library.begin_scope(part, CATEGORY)
            calls.append((id(module), name, bool(part)))

    def _end(self, module):
        calls = [] if self._is_compiling() else self._calls.items
        if any(entry[0] == id(module) for entry in calls):
            last = None
            while last != id(module):
                last, _, has_scope = calls.pop()
                if has_scope:
                    self._library.end_scope()


def _inner_part(name, outer):
    """Returns what a module's name adds to that of the module that calls it: ``attn`` in
    ``GPT/blocks/0/attn`` after ``GPT/blocks/0``. A module of another model has all of its name."""
    if name == outer:
        return ""
    return name[len(outer) + 1 :] if outer and name.startswith(f"{outer}/") else name
