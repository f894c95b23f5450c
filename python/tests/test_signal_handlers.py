"""Signal handlers of the program, which run in the middle of the package's functions."""

from harness import LIMIT, ProgramTest

#: Runs `work` once without a signal, then once for each line of the package in it, with a signal
#: before that line.
PRELUDE = f"LIMIT = {LIMIT}\n" + """
import contextlib
import faulthandler
import signal
import threading
import torch
import vramscope
from vramscope import _messages, _watch

# Shows where a program hangs, before the test ends it.
faulthandler.dump_traceback_later(LIMIT - 10)
FOLDER = os.path.dirname(vramscope.__file__)
kept = [torch.empty(1000, device="cuda")]

def lines_of(work, target=None, left_out=()):
    lines = {}

    def trace(frame, event, _):
        code = frame.f_code
        if os.path.dirname(code.co_filename) != FOLDER or os.path.basename(code.co_filename) in left_out:
            return None
        line = code.co_filename, frame.f_lineno
        if event == "line" and line not in lines:
            lines[line] = True
            if line == target:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return list(lines)

def start_and_stop():
    session = _watch.start(None, "run.vram", "python")
    kept.append(torch.empty(1000, device="cuda"))
    with contextlib.suppress(vramscope.WatchError):
        # The handler may have stopped the session.
        session.save("saved.vram")
    session.stop()

def check_free():
    '''Checks that neither this thread nor another one would wait for a lock.'''
    def watch():
        if _watch._current is not None:
            _watch._current.stop()
        session = _watch.start(None, "after.vram", "python")
        wait_until_live(session)
        assert session.stop()

    thread = threading.Thread(target=watch)
    watch()
    thread.start()
    thread.join()
"""


class SignalHandlerTest(ProgramTest):
    is_long = True

    def test_handler_that_calls_the_package_anywhere(self):
        output, errors = self.run_program(
            PRELUDE
            + """
results = []

def call(function, *arguments):
    try:
        results.append(function(*arguments))
    except RuntimeError as error:
        results.append(type(error).__name__)

def handle(*_):
    vramscope.mark("in the handler")
    if _watch._current is not None:
        call(_watch._current.save, "handler.vram")
        call(_watch._current.stop)
    call(_watch.start, None, None, "python")

signal.signal(signal.SIGUSR1, handle)
lines = lines_of(start_and_stop)
for line in lines:
    lines_of(start_and_stop, line)
    if _watch._current is not None:
        assert _watch._current.stop() is not None
check_free()
print(len(lines) > 100, "BusyError" in results, False in results)
            """
        )
        self.assertEqual(output, "True True True\n")
        self.assertIn("stop() has no effect: this call interrupts another one of vramscope", errors)

    def test_handler_that_raises_anywhere(self):
        self.run_program(
            PRELUDE
            + """
class Preempted(Exception):
    pass

def handle(*_):
    raise Preempted

signal.signal(signal.SIGUSR1, handle)
# A real signal does not arrive between the statements of the lock.
left_out = ["_call_lock.py"]
lines = lines_of(start_and_stop, left_out=left_out)
raised = 0
for line in lines:
    try:
        lines_of(start_and_stop, line, left_out)
    except Preempted:
        raised += 1
    if _watch._current is not None:
        _watch._current.stop()
check_free()
assert raised > 100
            """
        )

    def test_handler_that_stops_at_the_first_use_of_cuda(self):
        output, errors = self.run_program(
            """
            import signal
            import torch
            import vramscope
            from vramscope import _follow

            session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
            signal.signal(signal.SIGUSR1, lambda *_: print(session.stop()))
            take_snapshot = _follow.take_snapshot

            def take_interrupted(torch):
                _follow.take_snapshot = take_snapshot
                signal.raise_signal(signal.SIGUSR1)
                return take_snapshot(torch)

            _follow.take_snapshot = take_interrupted
            kept = train()
            wait_until_live(session)
            print(session.stop())
            """
        )
        self.assertEqual(output, "False\nTrue\n")
        self.assertIn("stop() has no effect", errors)

    def test_handler_that_prints_in_the_middle_of_a_message(self):
        self.run_program(
            """
            import vramscope
            from vramscope._messages import print_message

            class Interrupted:
                def write(self, text):
                    raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

            sys.stderr = Interrupted()
            print_message("a message")
            sys.stderr = sys.__stderr__
            """
        )
