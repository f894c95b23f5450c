"""What the callbacks for trainers have in common: a session for the time of a training, with the
trainer's epochs and steps as spans."""

import contextlib
import os
import sys

from . import _ranks, _watch
from ._messages import print_message, raise_if_of_handler

#: How many trainings this process has recorded to each file that was asked for.
_trainings = {}


class TrainingSession:
    """The session of a training: starts with it, and ends with it unless the program started it.

    The training continues whatever fails here.
    """

    def __init__(self, listen, record, stacks):
        if stacks not in _watch.STACKS:
            raise ValueError(f"stacks must be one of {_watch.STACKS}, not {stacks!r}")
        self._arguments = listen, record, stacks
        self._watch = None
        self._is_own = False
        #: Names of the open spans, the innermost last.
        self._open = []

    def __getstate__(self):
        # A trainer may be copied or sent to another process: only what was asked for goes with it.
        return {"_arguments": self._arguments, "_watch": None, "_is_own": False, "_open": []}

    @property
    def is_active(self):
        """True while the training is recorded."""
        return self._watch is not None

    def start(self):
        """Starts a session, or uses the one in progress."""
        with _reported("the training is not watched"):
            if self._watch is None:
                listen, record, stacks = self._arguments
                session = _watch._current
                self._is_own = session is None or session.starter == _watch.ON_OOM
                # The program's own session stays as it is; any other gets the page and the file.
                if session is None or session.starter is not None:
                    session = _ranks.watch(listen, _new_file(record), stacks)
                self._watch = session
                self._watch._following.labels.step_marks.marks_steps = False

    def annotate(self, model, optimizer=None):
        """Labels the model's blocks and names its modules."""
        if self._watch is not None and model is not None:
            with _reported("the model is not labelled"):
                self._watch.annotate(model, optimizer)

    def mark(self, name):
        """Records a mark, a named moment."""
        self._record(name, None)

    def begin(self, name):
        """Begins a span."""
        if self._watch is not None:
            self._open.append(name)
            self._record(name, "begin")

    def end(self, kind):
        """Ends the innermost open span whose name begins with the word ``kind``, and its parts."""
        if any(_kind(name) == kind for name in self._open):
            while _kind(self._end_innermost()) != kind:
                pass

    def is_in(self, kind):
        """Returns True within a span whose name begins with the word ``kind``."""
        return any(_kind(name) == kind for name in self._open)

    def stop(self):
        """Ends all spans, and the session if this one started it."""
        session = self._watch
        if session is None:
            return
        while self._open:
            self._end_innermost()
        self._watch = None
        with _reported("the recording may be incomplete"):
            session._following.labels.step_marks.marks_steps = True
            if self._is_own:
                session.stop()

    def _end_innermost(self):
        name = self._open.pop()
        self._record(name, "end")
        return name

    def _record(self, name, stage):
        if self._watch is not None:
            with _reported("a mark is missing"):
                self._watch._session.mark(name, stage)


def _new_file(path):
    """Returns the path for the first training, ``run-2.vram`` for the second, so that it keeps the
    first one's file."""
    if path is None:
        return None
    path = os.fspath(path)
    count = _trainings[path] = _trainings.get(path, 0) + 1
    stem, extension = os.path.splitext(path)
    return path if count == 1 else f"{stem}-{count}{extension}"


def _kind(name):
    """Returns the first word of a span's name: ``step`` for ``step 3``."""
    return name.partition(" ")[0]


@contextlib.contextmanager
def _reported(consequence):
    """Prints an exception, so that the training continues."""
    try:
        yield
    except Exception as error:
        raise_if_of_handler(error)
        print_message(f"{consequence}: {error}")
