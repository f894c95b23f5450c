"""Checks what the tracker reports, by the program's own use of memory.

The state of the first snapshot, changed by the events after it, must be the state of another
snapshot. Nothing is allocated for the check: on a full GPU, such a request could fail, and it would
end the capture of a CUDA graph in another thread. Until the check has passed, only the state of the
first snapshot is recorded, and events wait.
"""

import time

from ._snapshot import PAUSE_FACTOR, take_snapshot


class TrackerCheck:
    """The check of a session's tracker."""

    def __init__(self, session):
        self._session = session
        self._next_time = 0.0

    @property
    def has_passed(self):
        """True once the tracker is known to report correctly."""
        return self._session.is_tracker_checked

    def run(self, torch, has_begun, is_paced=True):
        """Checks the program's events so far. Returns False if the recording must not begin yet, or
        cannot continue. Raises RuntimeError if the tracker reports something wrong.

        If ``is_paced``, snapshots take at most 2% of a thread's time, as in ``_polling``. Otherwise
        the events so far are to be recorded now, also if they do not show every field."""
        start = time.monotonic()
        if self.has_passed or (is_paced and start < self._next_time):
            return self.has_passed
        if not self._session.has_events_to_check():
            # An idle program: its state can be recorded.
            return True
        result = self._session.check_events(take_snapshot(torch), not is_paced)
        if result is None and not has_begun:
            # Events were lost: the recording begins with a later state.
            self._session.prepare_snapshot()
            self._session.start(take_snapshot(torch))
        end = time.monotonic()
        self._next_time = end + PAUSE_FACTOR * (end - start)
        return self.has_passed
