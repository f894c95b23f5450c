"""Records the forward and backward passes of annotated models as spans."""

import functools
import sys
import threading

from . import _frames
from ._messages import call_harmlessly
from ._module_calls import Observer, forget_freed
from ._object_table import ObjectTable
from ._per_thread import PerThreadList

#: The names of the spans.
FORWARD = "forward"
BACKWARD = "backward"

#: True if the end of a call is not reported that a KeyboardInterrupt ends: modules have hooks then,
#: which PyTorch calls after an ``Exception`` only.
MISSES_INTERRUPTS = sys.version_info < (3, 12)

#: The spans that are recorded; None if there are none.
_current = None
#: Whether a thread is in a backward pass.
_local = threading.local()


class PhaseSpans:
    """Records spans of the models that the program names, and of all backward passes then."""

    def __init__(self, session):
        self._session = session
        #: The models, and what observes each.
        self._models = ObjectTable()
        #: The annotated models whose forward pass runs in each thread, outermost first: each with
        #: its address and, where it is needed, its frame as ``program_frames`` has it. Not those of
        #: a later session: a session may end in the middle of a pass.
        self._calls = PerThreadList()
        self._is_recording = False

    def add(self, model):
        """Records the passes of a model, once the recording has begun."""
        global _current
        if model in self._models:
            return
        self._is_compiling = sys.modules["torch"].compiler.is_compiling
        self._models.set(model, Observer(model, self._begin_forward, self._end_forward))
        _current = self
        _wrap_backward(sys.modules["torch"].autograd)

    def install(self):
        """Begins to record."""
        self._is_recording = True

    def remove(self):
        """Ends to record."""
        global _current
        self._is_recording = False
        for observer in self._models.clear():
            observer.remove()
        forget_freed()
        if _current is self:
            _current = None

    def mark(self, name, stage):
        """Records the beginning or the end of a span."""
        if self._is_recording:
            call_harmlessly(self._session.mark, name, stage)

    def _begin_forward(self, module, *_):
        if not self._is_compiling():
            calls = self._calls.items
            frames = _frames.program_frames() if MISSES_INTERRUPTS else [None]
            if calls and MISSES_INTERRUPTS:
                self._forget_interrupted(calls, frames)
            calls.append((id(module), frames[0]))
            if len(calls) == 1:
                self.mark(FORWARD, "begin")

    def _forget_interrupted(self, calls, frames):
        """Forgets calls that an interrupt has ended. ``frames`` are the functions that run now."""
        # The innermost one calls the model that begins now.
        calls[:] = [call for call in calls if call[1] in frames[1:]]
        if not calls:
            self.mark(FORWARD, "end")

    def _end_forward(self, module):
        calls = [] if self._is_compiling() else self._calls.items
        if any(address == id(module) for address, _ in calls):
            # Hooks that the program removed have left calls without an end (Python 3.10 and 3.11).
            while calls.pop()[0] != id(module):
                pass
            if not calls:
                self.mark(FORWARD, "end")


def _wrap_backward(autograd):
    """Makes ``torch.autograd.backward``, which ``Tensor.backward`` calls, record spans. It stays so
    after the session: another library may have wrapped it, too."""
    original = autograd.backward
    if getattr(original, "_is_vramscope", False):
        return

    @functools.wraps(original)
    def backward(*arguments, **keywords):
        spans = _current
        # A checkpoint with reentrant autograd calls it inside of a backward pass.
        if spans is None or getattr(_local, "is_backward", False):
            return original(*arguments, **keywords)
        _local.is_backward = True
        spans.mark(BACKWARD, "begin")
        try:
            return original(*arguments, **keywords)
        finally:
            _local.is_backward = False
            spans.mark(BACKWARD, "end")

    backward._is_vramscope = True
    autograd.backward = backward
    builtins = sys.modules.get("torch.jit._builtins")
    if builtins is not None:
        # `torch.jit.script` knows the function by its object.
        builtins._register_builtin(backward, "aten::backward")
