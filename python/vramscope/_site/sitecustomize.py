"""Starts vramscope in the Python processes of a program that `vramscope run` started.

The command puts this file's folder on `PYTHONPATH`, so every version of Python may import it, also
Python 2 and versions without the package.
"""

import os
import sys

try:
    import importlib.machinery
    import importlib.util
except ImportError:  # Python 2
    import imp

    importlib = None

#: The folder that contains the package, for a Python that lacks it.
_FOLDER = os.environ.get("VRAMSCOPE_PACKAGE")
#: The package's module of this name, once vramscope starts.
_messages = None


def _run_original(folder):
    """Imports the environment's own `sitecustomize`, which this module hides."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    if importlib is None:
        try:
            found = imp.find_module("sitecustomize", path)
        except ImportError:
            return
        imp.load_module("sitecustomize", *found)
        return
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _print(message):
    """Prints a line on standard error. A program that has closed it, or whose reader is gone, does
    not notice."""
    try:
        if sys.stderr is not None:
            sys.stderr.write("vramscope: %s\n" % message)
            sys.stderr.flush()
    except Exception as error:
        if _messages is not None:
            _messages.raise_if_of_handler(error)


def _package(known=None):
    """Returns the path of the package; None if it is not installed. ``known`` is a path that it may
    have, too."""
    spec = importlib.util.find_spec("vramscope")
    paths = list(spec.submodule_search_locations or ()) if spec is not None else []
    paths += [os.path.join(_FOLDER, "vramscope")] if _FOLDER else []
    paths += [known] if known is not None else []
    found = [os.path.abspath(path) for path in paths if os.path.exists(os.path.join(path, "_imports.py"))]
    return found[0] if found else None


def _module_of(package, name):
    """Imports that module of the package only: the whole package would load the library, which
    programs without PyTorch do not need."""
    spec = importlib.util.spec_from_file_location("_vramscope" + name, os.path.join(package, name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _start(first_package):
    """Starts vramscope. The program must not notice if that fails. ``first_package`` is the path of
    the package when Python started: the program may have changed ``sys.path`` meanwhile."""
    global _messages
    try:
        package = _package(first_package)
        if package is None:
            _print("cannot start: the package is no longer in %s: keep it there until the program has imported PyTorch"
                % os.path.dirname(first_package))
            return
        _messages = _module_of(package, "_messages")
        # Last, so that nothing else of that folder hides the program's own packages.
        extra = [os.path.dirname(package)] if importlib.util.find_spec("vramscope") is None else []
        sys.path += extra
        try:
            from vramscope import _autostart
        finally:
            for folder in extra:
                sys.path.remove(folder)
        _autostart.start()
    except Exception as error:
        if _messages is not None:
            _messages.raise_if_of_handler(error)
        _print("cannot start: %s" % error)


def _start_with_pytorch():
    """Starts vramscope when the program imports PyTorch."""
    package = _package()
    if package is None:
        _print("this Python lacks the package: pip install vramscope")
    else:
        _module_of(package, "_imports").call_after_import("torch", lambda _torch: _start(package))


try:
    if importlib is not None:
        _start_with_pytorch()
except Exception as error:
    _print("cannot start: %s" % error)
finally:
    _run_original(os.path.dirname(os.path.abspath(__file__)))
