"""Starts a session in a process that ``vramscope run`` started, when it imports PyTorch."""

import os

from . import _watch


def start():
    """Starts to push to the command. The command's own processes have no address to push to."""
    if os.environ.get("VRAMSCOPE_PUSH"):
        stacks = os.environ.get("VRAMSCOPE_STACKS", "python")
        _watch.start(None, None, None if stacks == "none" else stacks, starter=_watch.RUN)
