"""Errors that a signal handler of the program raises in the middle of the package's functions: the
program waits for them. Errors of the package do not reach the program."""

from harness import ProgramTest

PRELUDE = """
import enum
import functools
import signal
import torch
import vramscope

class Preempted(RuntimeError, ValueError, TimeoutError):
    '''Of each class that the package expects somewhere.'''

def handle(*_):
    raise Preempted

signal.signal(signal.SIGUSR1, handle)

def interrupt(owner, name):
    '''Sends a signal in the next call of a function.'''
    function = getattr(owner, name)

    def call(*arguments, **keywords):
        setattr(owner, name, function)
        signal.raise_signal(signal.SIGUSR1)
        return function(*arguments, **keywords)

    setattr(owner, name, call)

def reaches_the_program(call):
    try:
        call()
    except Preempted:
        return True
    return False
"""


class HandlerErrorTest(ProgramTest):
    def run_program(self, code, **keywords):
        return super().run_program(f"{PRELUDE}{code}", **keywords)

    def test_every_kind_of_handler_is_recognized(self):
        self.run_program(
            """
from vramscope import _spans

def handle_with(reason, number, frame):
    raise Preempted(reason)

def restore_and_handle(number, frame):
    signal.signal(number, signal.SIG_DFL)
    raise Preempted

def handle_in_a_cell(number, frame):
    def fail():
        raise Preempted(frame.f_lineno)
    fail()

@functools.wraps(handle)
def handle_wrapped(*arguments):
    return handle(*arguments)

class Handler:
    def __call__(self, number, frame):
        raise Preempted

    def handle(self, number, frame):
        raise Preempted

    @classmethod
    def handle_of_class(cls, number, frame):
        raise Preempted

handlers = [
    handle, functools.partial(functools.partial(handle_with), "twice"), restore_and_handle, handle_in_a_cell, handle_wrapped, Handler(), Handler().handle,
    Handler.handle_of_class, lambda number, frame: handle(),
]
with vramscope.record("run.vram"):
    for handler in handlers:
        signal.signal(signal.SIGUSR1, handler)
        interrupt(_spans, "_mark")
        assert reaches_the_program(lambda: torch.profiler.record_function("a").__enter__()), handler
            """
        )

    def test_errors_of_the_package_do_not_reach_the_program(self):
        self.run_program(
            """
from vramscope import _spans

class Color(enum.Enum):
    RED = 1

class Module:
    def __call__(self):
        raise ValueError

# Python calls the class of these handlers as it calls those of a program.
signal.signal(signal.SIGUSR2, Module())

failures = [lambda *_: Color(2), lambda *_: Module()(), lambda *_: signal.Signals(0), lambda *_: [].pop()]
with vramscope.record("run.vram"):
    for failure in failures:
        _spans._mark = failure
        with torch.profiler.record_function("a"):
            pass
            """
        )

    def test_observer_of_failures_passes_on_the_errors_of_handlers_only(self):
        _, errors = self.run_program(
            """
from vramscope import _watch

def fail():
    try:
        torch.empty(32 << 30, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return
    raise AssertionError

def raises(error):
    def call(*_, **_keywords):
        raise error
    return call

session = vramscope.on_oom("oom.vram")
torch.cuda.synchronize()
wait_until_live(session)
for error in MemoryError(), KeyError("key"), RuntimeError("message"):
    vramscope.on_oom("oom.vram")
    session._following.begin_at_failure = raises(error)
    fail()
del session._following.begin_at_failure
vramscope.on_oom("oom.vram")
interrupt(session._following, "begin_at_failure")
assert reaches_the_program(fail)
# Another session starts when the program's own one stops.
for failing in None, raises(KeyError()):
    vramscope.on_oom("oom.vram")
    session = vramscope.watch(listen="127.0.0.1:0")
    if failing is None:
        interrupt(_watch, "start")
        assert reaches_the_program(session.stop)
    else:
        _watch.start = failing
        session.stop()
            """
        )
        for message in "MemoryError()", "'key'", "message":
            self.assertIn(f"vramscope: cannot write oom.vram: {message}\n", errors)
        self.assertIn("vramscope: on_oom() does not record: KeyError()\n", errors)

    def test_handler_that_watches_while_cuda_is_initialized_does_not_wait(self):
        # The interrupted function of PyTorch holds a lock that is not reentrant.
        _, errors = self.run_program(
            """
sessions = []
signal.signal(signal.SIGUSR1, lambda *_: sessions.append(vramscope.watch(listen="127.0.0.1:0")))
interrupt(torch._C, "_cuda_init")
kept = train()
(session,) = sessions
assert session.status.startswith("off: a signal handler has interrupted"), session.status
session.stop()
signal.raise_signal(signal.SIGUSR1)
wait_until_live(sessions[1])
            """
        )
        self.assertIn("nothing is recorded: a signal handler has interrupted the initialization of CUDA", errors)

    def test_earlier_session_is_not_kept_until_cuda_is_initialized(self):
        self.run_program(
            """
import gc
import weakref

session = vramscope.watch(listen="127.0.0.1:0")
following = weakref.ref(session._following)
session.stop()
del session
with vramscope.record("run.vram") as session:
    gc.collect()
    assert following() is None
    kept = train()
    wait_until_live(session)
            """
        )
