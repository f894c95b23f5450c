"""Forked children: a child has a session of its own, or none.

A child has only the thread that forked, and its parent's locks in any state. So it uses nothing of
its parent's session. If that session pushes to a server, and CUDA was not used before the fork, the
child gets a session that pushes as another process. In a child of a process that has used CUDA,
CUDA does not work.
"""

import os

from . import _native, _out_of_memory, _pool_session, _scopes, _watch
from ._messages import print_message


def _after_fork_in_child():
    # `_call_lock` has released the locks already.
    for step in (
        _native.after_fork, _pool_session.continue_in_child, _scopes.enter_again, _out_of_memory.forget,
        _watch.continue_in_child,
    ):
        try:
            step()
        except Exception as error:  # The program must not notice: Python would print the traceback.
            print_message(f"the recording of this forked process may be incomplete: {error!r}")


os.register_at_fork(after_in_child=_after_fork_in_child)
