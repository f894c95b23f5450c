"""Watches what PyTorch does with GPU memory, live in the browser.

    import vramscope
    vramscope.watch()            # prints the address of the live page

    with vramscope.record("train.vram"):
        train()

PyTorch keeps its own allocator: vramscope follows it. ``docs/watch.md`` has all functions.
"""

import sysconfig

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise ImportError("vramscope needs a Python with the global interpreter lock; this one is free-threaded")

from . import _fork  # noqa: F401
from ._analyses import AnalysisError, advise, autopsy, diagnose
from ._native import __version__
from ._notebook import load_ipython_extension, register_magic, show
from ._out_of_memory import on_oom
from ._pool import Pool, PoolError, use_pool
from ._scopes import scope
from ._watch import Watch, WatchError, annotate, mark, memory_stats, record, save, watch

__all__ = [
    "AnalysisError",
    "Pool",
    "PoolError",
    "Watch",
    "WatchError",
    "__version__",
    "advise",
    "annotate",
    "autopsy",
    "diagnose",
    "mark",
    "memory_stats",
    "on_oom",
    "record",
    "save",
    "scope",
    "show",
    "use_pool",
    "watch",
]

register_magic()


def __getattr__(name):
    # Not before: these import the trainers' packages.
    if name == "HuggingFaceCallback":
        from ._huggingface import HuggingFaceCallback

        return HuggingFaceCallback
    if name == "LightningCallback":
        from ._lightning import callback_class

        return callback_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
