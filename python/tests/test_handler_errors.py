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
    handle, functools.partial(functools.partial(handle_with), "twice"), restore_and_handle, handle_in_a_cell,
    handle_wrapped, Handler(), Handler().handle, Handler.handle_of_class, lambda number, frame: handle(),
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

    def test_handlers_error_in_the_first_use_of_cuda(self):
        places = (
            "_follow.device_list", "_interpreter._check", "_native.Autograd", "_follow.take_snapshot", "_spans.begin",
            "_labels.Labels.install", "_follow.Following._try_begin", "_follow.Following._start_thread",
        )
        for place in places:
            with self.subTest(place=place):
                output, _ = self.run_program(
                    f"""
from vramscope import _follow, _interpreter, _labels, _native, _spans

session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
owner, _, name = {place!r}.rpartition(".")
interrupt(eval(owner), name)
try:
    torch.cuda.init()
except torch.cuda.DeferredCudaCallError as error:
    assert type(error.__cause__) is Preempted, error.__cause__
else:
    raise AssertionError("the error does not reach the program")
assert session.status == "waiting", session.status
kept = train()
wait_until_live(session)
kept += train()
write_log()
session.stop()
                    """
                )
                self.assertGreater(self.assert_recording_equals_log(), 50)

    def test_handlers_error_while_snapshots_are_begun(self):
        for place in "_follow.Polling", "_polling.take_snapshot", "_polling.PinnedMemory", "_pinned_memory.has_blocks":
            with self.subTest(place=place):
                self.run_program(
                    f"""
from vramscope import _follow, _pinned_memory, _polling

session = vramscope.watch(listen="127.0.0.1:0")
owner, _, name = {place!r}.rpartition(".")
interrupt(eval(owner), name)
try:
    torch.cuda.init()
except torch.cuda.DeferredCudaCallError as error:
    assert type(error.__cause__) is Preempted, error.__cause__
else:
    raise AssertionError("the error does not reach the program")
torch.cuda.init()
assert session.status.startswith("polling: "), session.status
                    """,
                    version="2.99.0+standin", layout=15,
                )

    def test_handlers_error_while_a_session_is_started_used_and_ended(self):
        self.run_program(
            """
import types
from vramscope import _metadata, _native, _spans

class Session:
    '''The library's session, whose functions can be replaced.'''

    def __init__(self, *arguments, **keywords):
        self.inner = NativeSession(*arguments, **keywords)

    def __getattr__(self, name):
        return getattr(self.inner, name)

NativeSession, _native.Session = _native.Session, Session
added = []
rules = types.SimpleNamespace(add=added.append)
sys.modules["torch._dynamo.trace_rules"] = rules

def watch():
    return vramscope.watch(listen="127.0.0.1:0")

for owner, name in (rules, "add"), (_metadata, "install"), (_spans, "install"), (_native, "Session"):
    interrupt(owner, name)
    assert reaches_the_program(watch), name
    if vramscope._watch._current is not None:
        vramscope._watch._current.stop()
assert added == ["vramscope"]
session = watch()
kept = train()
wait_until_live(session)

def record():
    with vramscope.record("block.vram"):
        pass

interrupt(session._session, "save")
assert reaches_the_program(lambda: session.save("saved.vram"))
session.starter = "vramscope run"
for name in "add_file", "end_file":
    interrupt(session._session, name)
    assert reaches_the_program(record), name
    session._block = None
interrupt(session._session, "add_file")
assert reaches_the_program(lambda: vramscope.watch(record="late.vram"))
session.stop()
session = vramscope._watch.start(None, None, "python", starter="vramscope run")
interrupt(session._session, "serve")
assert reaches_the_program(watch)
assert watch().url
            """
        )

    def test_handlers_error_while_other_functions_run(self):
        self.run_program(
            """
import types
from vramscope import _callbacks, _kernel, _notebook, _pool, _pool_library, _private, _ranks, _view

def of(module, *names):
    '''Gives a module functions of `os` that are its own.'''
    module.os = types.SimpleNamespace(**{**vars(os), "path": os.path})
    return module.os

def serve():
    _view.serve("no-such-file")

training = _callbacks.TrainingSession(None, None, None)
training._watch = types.SimpleNamespace(_session=types.SimpleNamespace(mark=lambda *_: None), annotate=lambda *_: None)
sys.modules["IPython"] = ipython = types.SimpleNamespace(get_ipython=lambda: None)
allocator = "cpython-is-no-allocator.so"
for owner, name, call in (
    (of(_private), "stat", lambda: _private.is_private("/", "/")),
    (of(_view), "stat", serve),
    (ipython, "get_ipython", _kernel.is_kernel),
    (ipython, "get_ipython", _notebook.register_magic),
    (training._watch._session, "mark", lambda: training.mark("a")),
    (training._watch, "annotate", lambda: training.annotate(object())),
    (_pool_library.ctypes, "CDLL", lambda: _pool_library.PoolLibrary(allocator)),
    (_pool, "torch_minor", lambda: _pool._check(torch)),
):
    interrupt(owner, name)
    assert reaches_the_program(call), name
            """
        )

    def test_handlers_error_while_ranks_join(self):
        self.run_program(
            """
import socket
from vramscope import _ranks

class Socket(socket.socket):
    def connect(self, name):
        super().connect(name)

    def bind(self, name):
        super().bind(name)

_ranks.socket.socket = Socket
interrupt(Socket, "connect")
assert reaches_the_program(lambda: _ranks._Connection("\\0no-such-name"))
interrupt(Socket, "connect")
assert reaches_the_program(lambda: _ranks._is_held_by_another_user("\\0no-such-name"))
interrupt(Socket, "bind")
assert reaches_the_program(lambda: _ranks._Server("\\0a-name", "127.0.0.1:0", None))
interrupt(_ranks, "_join")
assert reaches_the_program(lambda: _ranks.watch("127.0.0.1:0"))
            """,
            WORLD_SIZE="2", RANK="0", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1",
        )

    def test_spans_are_recorded_although_texts_are_not(self):
        _, errors = self.run_program(
            """
from vramscope import _metadata

def fail(*_):
    raise AttributeError("another version of PyTorch")

_metadata.install = fail
with vramscope.record("run.vram") as session:
    kept = train()
    wait_until_live(session)
    with torch.profiler.record_function("a span"):
        pass
            """
        )
        message = "vramscope: texts of the program are not recorded: AttributeError('another version of PyTorch')"
        self.assertIn(message, errors)
        self.assertNotIn("spans are not recorded", errors)
        self.assertEqual(self.marks().count("a span"), 2)
