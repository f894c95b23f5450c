"""Writes the recording at the first out-of-memory."""

import os
import sys

from . import _native
from ._imports import call_after_import
from ._watch import WatchError, start

#: The file for the next out-of-memory; None after the first one.
_path = None
_is_observing = False


def on_oom(path):
    """Writes the recording to the file ``path`` at the first out-of-memory, and prints what filled
    the GPU and why the request failed.

    Starts to record, without a page, if no session is in progress. The file ends with the failed
    request; the program goes on, and may catch the error.
    """
    global _path, _is_observing
    _path = os.fspath(path)
    session = start(listen=None, record=None, stacks="python")
    if not _is_observing:
        _is_observing = True
        call_after_import("torch", _observe_when_initialized)
    return session


def _observe_when_initialized(torch):
    def observe():
        # There is no way to detach an observer: it does nothing after the first failure.
        torch._C._cuda_attach_out_of_memory_observer(_out_of_memory)

    if torch.cuda.is_initialized():
        observe()
    else:
        torch.cuda._lazy_call(observe)


def _out_of_memory(device, segment_bytes, _device_total, _device_free):
    global _path
    path, _path = _path, None
    if path is None:
        return
    try:
        session = start(listen=None, record=None, stacks="python")
        session._following.begin_at_failure(device, segment_bytes)
        session._session.save(path)
        sentence = _native.end_at_out_of_memory(path)
        print(f"vramscope: {sentence or 'out of memory.'} The recording is in {path}.", file=sys.stderr, flush=True)
    except (RuntimeError, OSError, WatchError) as error:
        # The program must get its own error.
        print(f"vramscope: cannot write {path}: {error}", file=sys.stderr, flush=True)
