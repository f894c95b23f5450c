"""Calls a function when a module has been imported, without importing it."""

import importlib.abc
import sys
import threading


class _Finder(importlib.abc.MetaPathFinder):
    """Finds a module with the other finders, and calls back after it has been executed."""

    def __init__(self, name, callback):
        self.name = name
        self.callback = callback
        self._searching = threading.local()

    def find_spec(self, name, path, target=None):
        if name != self.name or getattr(self._searching, "now", False):
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
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self.callback(module)

            spec.loader.exec_module = exec_module
        return spec


def call_after_import(name, callback):
    """Calls ``callback(module)`` when the module ``name`` has been imported: now, if it has."""
    module = sys.modules.get(name)
    if module is not None:
        callback(module)
    else:
        sys.meta_path.insert(0, _Finder(name, callback))
