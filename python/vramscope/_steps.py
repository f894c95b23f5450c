"""Marks the steps of the program's optimizer."""

import weakref

#: Steps in a row after which another optimizer is the program's, at first.
MIN_TURN = 2
#: A turn of this many steps or more is a training of its own.
MAX_TURN = 16


class StepMarks:
    """Marks the steps of one optimizer at a time, numbered in the order of the marks.

    Optimizers that step in turns, as in a GAN, get one mark a round: those of the first one. If it
    is gone, or another one steps several times in a row, such as in a second training, the steps of
    that one are marked. If the first one then steps again after a short turn of the other, it was
    a round, and the turn of another optimizer has to be longer from then on.
    """

    def __init__(self, session):
        self._session = session
        #: False if the program's trainer names the steps.
        self.marks_steps = True
        self._steps = 0
        # References, because a later object may have the id of an optimizer that is gone.
        self._marked = _nothing
        self._replaced = _nothing
        self._last = _nothing
        #: How many times the last optimizer has stepped in a row.
        self._run = 0
        self._min_turn = MIN_TURN

    def after_step(self, optimizer):
        """Marks a step of an optimizer if its steps are marked."""
        if self._choose(optimizer) is optimizer:
            self._steps += 1
            if self.marks_steps:
                self._session.mark(f"step {self._steps}")

    def _choose(self, optimizer):
        """Returns the optimizer whose steps are marked, after a step of ``optimizer``."""
        last_run = self._run
        if self._last() is optimizer:
            self._run += 1
        else:
            self._last, self._run = weakref.ref(optimizer), 1
        marked = self._marked()
        if marked is optimizer:
            return marked
        if marked is None:
            self._marked = self._last
        elif self._run == 1 and self._replaced() is optimizer and last_run < MAX_TURN:
            self._marked, self._replaced = self._last, _nothing
            self._min_turn = max(self._min_turn, last_run + 1)
        elif self._run >= self._min_turn:
            self._marked, self._replaced = self._last, self._marked
        return self._marked()


def _nothing():
    return None
