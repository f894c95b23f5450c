"""Calls a function when a module has been imported, without importing it."""

import importlib.abc
import sys
import threading


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a module with the other finders, and calls back after it has been executed."""

    def __init__(self, name, callback):
        self.name = name
        #: None once nothing is to be called.
        self.callback = callback
        self._searching = threading.local()

    def find_spec(self, name, path, target=None):
        if name != self.name or self.callback is None or getattr(self._searching, "now", False):
            return None
        self._searching.now = True
        try:
            for finder in sys.meta_path:
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find is not None else None
                if spec is not None:
                    break
            else:
                return None
        finally:
            self._searching.now = False
        if spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                # Not before: programs search for a module to see whether it is installed.
                callback = self.callback
                if callback is not None and self in sys.meta_path:
                    sys.meta_path.remove(self)
                    callback(module)

            spec.loader.exec_module = exec_module
        return spec


def call_after_import(name, callback):
    """Calls ``callback(module)`` when the module ``name`` has been imported: now, if it has."""
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
        return
    for finder in _finders():
        if finder.name == name and finder.callback is None:
            finder.callback = callback
            return
    sys.meta_path.insert(0, _Finder(name, callback))


def forget_import(callback):
    """Does not call a callback of ``call_after_import`` any more, and does not keep it."""
    for finder in _finders():
        if finder.callback == callback:
            # The finder stays: an import in another thread, which reads the list, would leave out
            # the one after it.
            finder.callback = None


def _finders():
    return [finder for finder in sys.meta_path if type(finder) is _Finder]
