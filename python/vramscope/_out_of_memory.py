"""Writes the recording at the first out-of-memory."""

import os
import sys

from . import _native, _watch
from ._cuda_start import call_when_initialized
from ._imports import call_after_import
from ._messages import print_message, raise_if_of_handler

#: The file for the next out-of-memory; None after the first one.
_path = None
#: The process that called ``on_oom``.
_process = None
_is_observing = False


def on_oom(path):
    """Writes the recording to the file ``path`` at the first out-of-memory, and prints what filled
    the GPU and why the request failed.

    Starts to record, without a page, if no session is in progress, and again when that one stops.
    The file ends with the failed request; the program goes on, and may catch the error. To end
    this, stop the session that is returned while no ``watch()`` uses it.
    """
    global _path, _process, _is_observing
    _path, _process = _watch.checked_path(path), os.getpid()
    session = _watch.start(None, None, "python", starter=_watch.ON_OOM)
    _watch._after_stop = _session_has_stopped
    if not _is_observing:
        call_after_import("torch", _observe_when_initialized)
        _is_observing = True
    return session


def forget():
    """Leaves the file to the parent, in a forked child."""
    global _path
    _path = None


def _session_has_stopped(session):
    """Starts another session, from the current state on, so that the failure is recorded."""
    global _path
    if session.starter == _watch.ON_OOM:
        _path = None
    # A forked child has neither the session nor CUDA.
    if _path is None or os.getpid() != _process:
        return
    try:
        # Without the variables: VRAMSCOPE_RECORD names the file of the session that has stopped.
        _watch.start(None, None, "python", starter=_watch.ON_OOM, from_environment=False)
    except Exception as error:  # The program must not notice.
        raise_if_of_handler(error)
        print_message(f"on_oom() does not record: {str(error) or repr(error)}")


def _observe_when_initialized(torch):
    def observe():
        try:
            # There is no way to detach an observer: it does nothing after the first failure.
            torch._C._cuda_attach_out_of_memory_observer(_out_of_memory)
        except Exception as error:  # The program may be initializing CUDA.
            raise_if_of_handler(error)
            print_message(f"on_oom() does not record: {str(error) or repr(error)}")

    call_when_initialized(torch.cuda, "observer", observe)


def _out_of_memory(device, segment_bytes, _device_total, _device_free):
    global _path
    path, _path = _path, None
    if path is None:
        return
    try:
        # Without waiting for a session that another thread stops.
        session = _watch._current or _watch.start(None, None, "python", starter=_watch.ON_OOM)
        session._following.begin_at_failure(device, segment_bytes)
        session._session.save(path)
        sentence = _native.end_at_out_of_memory(path)
        print_message(f"{sentence or 'out of memory.'} The recording is in {path}.")
    except Exception as error:  # The program must get its own error.
        raise_if_of_handler(error)
        print_message(f"cannot write {path}: {str(error) or repr(error)}")
