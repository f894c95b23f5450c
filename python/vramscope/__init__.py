"""Watches what PyTorch does with GPU memory, live in the browser.

    import vramscope
    vramscope.watch()            # prints the address of the live page

    with vramscope.record("train.vram"):
        train()

PyTorch keeps its own allocator: vramscope follows it. ``docs/pytorch.md`` has all ways to use it.
"""

from ._native import __version__
from ._out_of_memory import on_oom
from ._watch import Watch, WatchError, annotate, mark, memory_stats, record, save, watch

__all__ = [
    "Watch",
    "WatchError",
    "__version__",
    "annotate",
    "mark",
    "memory_stats",
    "on_oom",
    "record",
    "save",
    "watch",
]
