"""Starts vramscope in the Python processes of a program that `vramscope run` started.

The command puts this file's folder on `PYTHONPATH`, so every version of Python may import it.
"""

import importlib.machinery
import importlib.util
import os
import sys

#: The folder that contains the package, for a Python that lacks it.
_FOLDER = os.environ.get("VRAMSCOPE_PACKAGE")


def _run_original(folder):
    """Imports the environment's own `sitecustomize`, which this module hides."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _package():
    """Returns the path of the package; None if it is not installed."""
    spec = importlib.util.find_spec("vramscope")
    paths = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths += [os.path.join(_FOLDER, "vramscope")] if _FOLDER else []
    return next((path for path in paths if os.path.exists(os.path.join(path, "_imports.py"))), None)


def _call_after_import(name, callback):
    """Calls a function when a module has been imported, with the package's module for it alone: the
    package loads its library, of which programs without PyTorch shall see nothing."""
    package = _package()
    if package is None:
        print("vramscope: this Python lacks the package: pip install vramscope", file=sys.stderr)
        return
    path = os.path.join(package, "_imports.py")
    spec = importlib.util.spec_from_file_location("_vramscope_imports", path)
    imports = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imports)
    imports.call_after_import(name, callback)


def _start(_torch):
    """Starts vramscope. The program must not notice if that fails."""
    try:
        # Last, so that nothing else of that folder hides the program's own packages.
        extra = [_FOLDER] if _FOLDER and importlib.util.find_spec("vramscope") is None else []
        sys.path += extra
        try:
            from vramscope import _autostart
        finally:
            for folder in extra:
                sys.path.remove(folder)
        _autostart.start()
    except Exception as error:
        print("vramscope: cannot start: %s" % error, file=sys.stderr)


try:
    _call_after_import("torch", _start)
except Exception as error:
    print("vramscope: cannot start: %s" % error, file=sys.stderr)
finally:
    _run_original(os.path.dirname(os.path.abspath(__file__)))
