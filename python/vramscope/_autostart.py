"""Starts a session in a process that ``vramscope run`` started, once it imports PyTorch."""

import os
import sys


def start():
    """Waits for PyTorch to be imported. Other Python programs are left alone."""
    from ._imports import call_after_import

    if os.environ.get("VRAMSCOPE_PUSH"):
        call_after_import("torch", _torch_is_imported)


def _torch_is_imported(_torch):
    try:
        # Not before: this loads the library.
        from . import _watch

        stacks = os.environ.get("VRAMSCOPE_STACKS", "python")
        _watch.start(listen=None, record=None, stacks=None if stacks == "none" else stacks)
    except Exception as error:  # The program must not notice.
        print(f"vramscope: cannot start: {error}", file=sys.stderr, flush=True)
