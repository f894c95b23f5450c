"""Messages for the user, and errors that are not the program's."""

import signal
import sys


def print_message(message):
    """Prints a line on standard error. A program that has closed it, or whose reader is gone, does
    not notice."""
    try:
        # Without the check, `print` would write to standard output.
        if sys.stderr is not None:
            print(f"vramscope: {message}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass


def is_of_signal_handler(error):
    """Returns True if a signal handler raised an error. Python runs handlers in the middle of any
    function, ours too, and the program waits for what its handler raises."""
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False


def _code_of(handler):
    """Returns the code object of a signal handler; None for one without Python code."""
    function = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", None)
    function = function or getattr(type(handler), "__call__", None)
    return getattr(function, "__code__", None)
