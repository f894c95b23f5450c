"""Records the texts that the program sets with ``torch.cuda.memory._set_memory_metadata``.

PyTorch adds such a text to its record of each request of the thread, until the thread sets another
one. Here the text is a scope of the thread, and a mark when it is set. PyTorch has the function
from 2.10 on.
"""

import functools
import threading
import weakref

from ._messages import call_harmlessly
from ._scopes import scope

#: The function of ``torch._C`` that sets the text.
NAME = "_cuda_setMemoryMetadata"

_session = None
#: The module of the function and the function, while it is replaced.
_original = None
_local = threading.local()
#: The texts that are set; each belongs to a thread.
_texts = weakref.WeakSet()


class _Text:
    """A text that a thread has set."""

    def __init__(self, text):
        self.text = text
        self.scope = scope(text)


def install(torch, session):
    """Starts to record texts in a session."""
    global _session, _original
    _session = session
    function = getattr(torch._C, NAME, None)
    if _original is None and function is not None:
        _original = torch._C, function
        setattr(torch._C, NAME, _recorded(function))


def remove():
    """Stops to record texts."""
    global _session
    _session = None
    _restore_if_unused()


def _restore_if_unused():
    """Restores PyTorch's function. A thread with a text still has its scope: the function stays
    until that text is gone, because a later session would record it."""
    global _original
    if _session is None and not _texts:
        original, _original = _original, None
        if original is not None:
            module, function = original
            setattr(module, NAME, function)


def _recorded(function):
    @functools.wraps(function)
    def set_metadata(metadata):
        function(metadata)
        call_harmlessly(_set, metadata)

    return set_metadata


def _set(text):
    """Replaces the thread's text; an empty one is none."""
    earlier = getattr(_local, "text", None)
    if text == ("" if earlier is None else earlier.text):
        return
    if earlier is not None:
        _local.text = None
        earlier.scope._close()
        _texts.discard(earlier)
    _restore_if_unused()
    session = _session
    if text and session is not None:
        _local.text = new = _Text(text)
        _texts.add(new)
        # Not in the module that sets it: it stays when that module has returned.
        new.scope._open(module=0)
        session.mark(text)
