"""Starts vramscope in the Python processes of a program that `vramscope run` started."""

import importlib.util
import os
import sys


def _run_original(folder):
    """Imports the environment's own `sitecustomize`, which this module hides."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _start():
    """Starts vramscope once the program imports PyTorch."""
    try:
        import vramscope._autostart
    except ImportError:
        folder = os.environ.get("VRAMSCOPE_PACKAGE")
        if not folder:
            print("vramscope: this Python lacks the package: pip install vramscope", file=sys.stderr)
            return
        # Last, so that nothing else of that folder hides the program's own packages.
        sys.path.append(folder)
        try:
            import vramscope._autostart
        except ImportError as error:
            print(f"vramscope: cannot import the package: {error}", file=sys.stderr)
            return
        finally:
            sys.path.remove(folder)
    vramscope._autostart.start()


try:
    _start()
finally:
    _run_original(os.path.dirname(os.path.abspath(__file__)))
