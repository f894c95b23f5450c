"""Messages for the user, and errors that are not the program's."""

import sys

#: Flags of a code object: the function has `*args`, `**kwargs`.
VARIABLE_FLAGS = 0x04, 0x08


def parameter_count(code):
    """Returns the number of a function's parameters, ``*args`` and ``**kwargs`` included."""
    return code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in VARIABLE_FLAGS)


def print_message(message):
    """Prints a line on standard error. A program that has closed it, or whose reader is gone, does
    not notice."""
    try:
        # Without the check, `print` would write to standard output.
        if sys.stderr is not None:
            print(f"vramscope: {message}", file=sys.stderr, flush=True)
    except Exception as error:
        # Also a RuntimeError: a signal handler may have interrupted this thread in a print.
        raise_if_of_handler(error)


def call_harmlessly(function, *arguments):
    """Calls a function in the middle of the program, which does not notice a failure."""
    try:
        function(*arguments)
    except Exception as error:
        raise_if_of_handler(error)


def raise_if_of_handler(error):
    """Raises an error again if a signal handler of the program has raised it. Python runs handlers
    in the middle of any function, ours too, and the program waits for what its handler raises.

    Call this wherever the program's thread catches an error that is not expected by its class."""
    if is_of_signal_handler(error):
        raise error


def is_of_signal_handler(error):
    """Returns True if a signal handler raised an error."""
    traceback = error.__traceback__
    # The outermost frame is the one that has caught the error.
    traceback = traceback and traceback.tb_next
    while traceback is not None:
        if _is_called_by_python(traceback.tb_frame):
            return True
        traceback = traceback.tb_next
    return False


def _is_called_by_python(frame):
    """Returns True for the frame of a function that Python has called in the middle of another one:
    a signal handler, whatever is registered at present, or a debugger. Only such a function gets
    the frame that it interrupts, as an argument."""
    code, interrupted = frame.f_code, frame.f_back
    if interrupted is None:
        return False
    count = parameter_count(code)
    values = frame.f_locals
    for name in code.co_varnames[:count]:
        value = values.get(name)
        if value is interrupted or (isinstance(value, tuple) and any(part is interrupted for part in value)):
            return True
    return False
