"""What the package does not do to the program that it watches."""

import contextlib
import glob
import os
import subprocess
import sys
import sysconfig
import types
import unittest
import unittest.mock

import harness
from harness import ProgramTest

#: Fills the device to the last byte; `full_log` is the allocator's log then.
FULL_GPU = """
import torch
import vramscope
from vramscope import _tracker_check

kept = [torch.empty(16 << 20, dtype=torch.uint8, device="cuda")]
torch._library.set_limit(0, torch.cuda.memory_reserved())
observed = []
torch._C._cuda_attach_out_of_memory_observer(lambda *failure: observed.append(failure))

def log():
    return [entry for entry in torch._library.log(0) if entry[0] != 7]

full_log = log()
"""


class FullGpuTest(ProgramTest):
    def test_watch_requests_nothing(self):
        self.run_program(
            FULL_GPU
            + """
with vramscope.record("run.vram") as session:
    wait_until_live(session)
    wait_for_call(_tracker_check.TrackerCheck, "run")
    assert log() == full_log and not observed
    kept.clear()
    kept.append(torch.empty(5 << 20, dtype=torch.uint8, device="cuda"))
write_log()
            """
        )
        self.assertEqual(self.assert_recording_equals_log(), 3)

    def test_the_programs_failure_is_the_one_that_is_reported(self):
        _, errors = self.run_program(
            FULL_GPU
            + """
vramscope.on_oom("oom.vram")
wait_for_call(_tracker_check.TrackerCheck, "run")
assert log() == full_log and not observed and not os.path.exists("oom.vram")
try:
    torch.empty(9 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
else:
    raise AssertionError
assert len(observed) == 1
            """
        )
        self.assertIn("The recording is in oom.vram.", errors)
        self.assertEqual(self.info("oom.vram")["devices"][0]["ooms"], 1)

    def test_failure_in_another_thread_during_watch(self):
        # The observer's thread waits for the session that another thread starts.
        self.run_program(
            FULL_GPU
            + """
import threading

def fail():
    for _ in range(200):
        try:
            torch.empty(9 << 20, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass

threads = [threading.Thread(target=fail) for _ in range(4)]
for thread in threads:
    thread.start()
for number in range(20):
    session = vramscope.on_oom(f"oom{number}.vram")
    session.stop()
for thread in threads:
    thread.join()
            """
        )


class ProgramsObjectsTest(ProgramTest):
    def test_spans_class_and_modules_stay_as_they_are(self):
        self.run_program(
            """
    import inspect
    import torch
    import vramscope

    kind = torch.profiler.record_function
    methods = kind.__enter__, kind.__exit__
    sources = [inspect.getsource(method) for method in methods]
    net, optimizer = train(1)
    with vramscope.record("run.vram") as session:
        wait_until_live(session)
        session.annotate(net)
        net(torch.empty(32, 64, device="cuda"))
        # What torch.jit.script reads of a class and of modules.
        assert [inspect.getsource(method) for method in (kind.__enter__, kind.__exit__)] == sources
        hooks = [*net._forward_pre_hooks.values(), *net._forward_hooks.values()]
        assert all(hook.__name__ for hook in hooks)
        if sys.version_info >= (3, 12):
            assert (kind.__enter__, kind.__exit__) == methods and not hooks
    assert (kind.__enter__, kind.__exit__) == methods
    assert not net._forward_pre_hooks and not net._forward_hooks
            """
        )

    def test_objects_that_a_function_deletes_are_freed_at_once(self):
        # Up to Python 3.12, a frame whose local variables are asked for keeps a dictionary of them.
        self.run_program(
            """
    import weakref
    import torch
    import vramscope

    class Model:
        pass

    def check(use, _argument):
        model = Model()
        reference = weakref.ref(model)
        result = use()
        del model
        assert reference() is None
        return result

    def check_own_dictionary(use, _argument):
        known = locals()
        later = use()
        assert "later" not in known and "known" not in known

    for function in check, check_own_dictionary:
        with vramscope.record("run.vram") as session:
            # The first use of CUDA, and an allocation in a later session.
            function(lambda: torch.empty(1, device="cuda"), None)
            wait_until_live(session)
        function(lambda: vramscope.watch(listen="127.0.0.1:0"), None)
        vramscope.watch().stop()
            """
        )

    def test_module_is_compiled_without_hooks(self):
        self.run_program(
            """
    import types
    import torch
    import vramscope

    def get_hook_stubs(module):
        # As in torch.jit._recursive: each hook is compiled.
        return [hook.__code__ for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())]

    sys.modules["torch.jit._recursive"] = recursive = types.SimpleNamespace(get_hook_stubs=get_hook_stubs)
    net, optimizer = train(1)

    def own_hook(module, arguments):
        pass

    net.register_forward_pre_hook(own_hook)
    with vramscope.record("run.vram") as session:
        wait_until_live(session)
        session.annotate(net)
        assert recursive.get_hook_stubs(net) == [own_hook.__code__]
            """
        )


class InterpreterTest(ProgramTest):
    def test_free_threaded_python_is_refused_in_one_line(self):
        code = """
import sysconfig
get = sysconfig.get_config_var
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else get(name)
# Such an interpreter does not find the extension module.
sys.modules["vramscope._native"] = None
"""
        _, errors = self.run_program(code + "import vramscope", status=1)
        message = "vramscope needs a Python with the global interpreter lock; this one is free-threaded"
        self.assertEqual(errors.splitlines()[-1], f"ImportError: {message}")
        program = self.write_program(code + "import torch\nprint(torch.cuda.device_count())")
        process = self.start(harness.BINARY, "run", "--no-open", "--listen", "127.0.0.1:0", sys.executable, program)
        output, errors = process.communicate(timeout=harness.LIMIT)
        self.assertEqual((process.returncode, output), (0, "1\n"), errors)
        self.assertIn(f"vramscope: cannot start: {message}\n", errors)

    @unittest.skipIf(sys.version_info >= (3, 12), "this interpreter reports calls")
    def test_calls_that_the_interpreter_reports(self):
        """Runs tests of what is observed with each newer Python, in which no hooks are used."""
        is_newer = "sys.version_info >= (3, 12) and not sysconfig.get_config_var('Py_GIL_DISABLED')"
        ask = ["-c", f"import sys, sysconfig; print({is_newer})"]
        found = [path for path in harness.pythons() if subprocess.check_output([path, *ask]) == b"True\n"]
        if not found:
            self.skipTest("there is no Python 3.12 or newer")
        native = harness.NATIVE
        if harness.IS_INSTALLED:
            (native,) = glob.glob(os.path.join(sysconfig.get_path("platlib"), "vramscope", "_native*.so"))
        names = ["Labels", "Phases", "ProgramsObjects", "Errors", "Metadata", "Steps", "End"]
        variables = {name: value for name, value in os.environ.items() if name != "VRAMSCOPE_INSTALLED"}
        runner = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.py")
        for python in found:
            with self.subTest(python=python):
                # Without a limit: each program of these tests has one.
                done = subprocess.run(
                    [python, runner, *(f"{name}Test" for name in names)],
                    env={**variables, "VRAMSCOPE_NATIVE": native, "VRAMSCOPE_BINARY": harness.BINARY},
                    capture_output=True, text=True,
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stderr, r"\b[1-9]\d tests, ")


class ErrorsTest(ProgramTest):
    def test_exception_of_a_signal_handler_reaches_the_program(self):
        # The signal arrives while a function of the package runs.
        self.run_program(
            """
            import signal
            import torch
            import vramscope
            from vramscope import _labels, _spans

            class Preempted(Exception):
                pass

            def handle(*_):
                raise Preempted

            signal.signal(signal.SIGUSR1, handle)
            interrupts = []

            def interrupting(function):
                def call(*arguments):
                    if interrupts:
                        interrupts.pop()
                        signal.raise_signal(signal.SIGUSR1)
                    return function(*arguments)
                return call

            _spans._mark = interrupting(_spans._mark)
            _labels.add_blocks = interrupting(_labels.add_blocks)
            net, optimizer = train(1)
            with vramscope.record("run.vram") as session:
                wait_until_live(session)
                session.annotate(net)
                for call in (
                    lambda: torch.profiler.record_function("a").__enter__(),
                    lambda: net(torch.empty(32, 64, device="cuda")).backward() or optimizer.step(),
                ):
                    interrupts.append(True)
                    try:
                        call()
                    except Preempted:
                        assert not interrupts
                    else:
                        raise AssertionError(call)
            """
        )

    def test_closed_standard_error_is_not_noticed(self):
        # The stand-in has no autograd, which is a message at the first use of CUDA.
        code = """
            import torch
            import vramscope

            session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
            BREAK
            kept = train()
            wait_until_live(session)
            session.stop()
            print("done")
        """
        for statement in "sys.stderr = None", "os.close(sys.stderr.fileno())", "sys.stderr.close()":
            with self.subTest(statement=statement):
                output, _ = self.run_program(code.replace("BREAK", statement))
                self.assertEqual(output, "done\n")

    def test_function_that_is_defined_again_is_observed(self):
        self.run_program(
            """
            import torch
            import vramscope

            source = "class Net(torch.nn.Module):\\n    def forward(self, x):\\n        return x"
            nets = []
            for _ in range(2):
                exec(source)
                nets.append(Net())
            kept = torch.empty(1, device="cuda")
            with vramscope.record("run.vram") as session:
                wait_until_live(session)
                for net in nets:
                    session.annotate(net)
                for net in nets:
                    net(kept)
            """
        )
        rows = [row for row in self.events() if row["name"] == "forward"]
        self.assertEqual([row["stage"] for row in rows], 2 * ["begin", "end"])


class EndTest(ProgramTest):
    def test_block_that_is_open_in_a_daemon_thread_at_exit(self):
        for _ in range(5):
            self.run_program(
                """
    import threading
    import torch
    import vramscope

    kept = [torch.empty(1000, device="cuda")]
    is_open = threading.Event()

    def record():
        with vramscope.record("run.vram") as session:
            wait_until_live(session)
            while True:
                kept.append(torch.empty(1000, device="cuda"))
                if len(kept) == 50:
                    is_open.set()
                time.sleep(0.001)

    threading.Thread(target=record, daemon=True).start()
    is_open.wait()
                """
            )
            self.vramscope("verify", "run.vram")
            self.assertGreaterEqual(sum(row["kind"] == "alloc" for row in self.events()), 48)


class AutogradTest(unittest.TestCase):
    """The checks of autograd's operations, with a stand-in for PyTorch's tensors."""

    class Node:
        def __init__(self, number):
            self.number = number

        def _sequence_nr(self):
            return self.number

    class Tensor:
        def __init__(self, torch):
            self.torch = torch
            self.grad_fn = AutogradTest.Node(6)
            self.hooks = []

        def __mul__(self, _):
            return self

        def register_hook(self, hook):
            self.hooks.append(hook)

        def backward(self):
            self.torch.backward_passes += 1
            self.torch.node = 6
            for hook in self.hooks:
                hook(None)
            self.torch.node = None

    class Torch:
        """Both PyTorch and what the library reads of it."""

        float32 = "float32"

        def __init__(self, offset=0):
            self.requests, self.backward_passes, self.node, self.offset = [], 0, None, offset

        @staticmethod
        def enable_grad():
            return contextlib.nullcontext()

        def ones(self, *_, **keywords):
            self.requests.append(keywords)
            return AutogradTest.Tensor(self)

        def numbers(self):
            return 7 + self.offset, self.node and self.node + self.offset

        def check_node(self, _address, number):
            if number != 6 + self.offset:
                raise RuntimeError("a node has another number")

    def setUp(self):
        # Importing the module needs the library only.
        folder = harness.package()
        if folder is not None and folder not in sys.path:
            sys.path.insert(0, folder)
            self.addCleanup(sys.path.remove, folder)

    def test_operations_are_checked_on_the_cpu_without_a_backward_pass(self):
        from vramscope import _interpreter

        torch = self.Torch()
        _interpreter.check_operations(torch, torch)
        self.assertEqual([request["device"] for request in torch.requests], ["cpu"])
        self.assertEqual(torch.backward_passes, 0)
        _interpreter.check_backward(torch, torch)
        self.assertEqual([request["device"] for request in torch.requests], ["cpu", "cpu"])

    def test_no_backward_pass_runs_in_a_program_with_compiled_autograd(self):
        from vramscope import _interpreter

        for module, name in ("compiled_autograd", "compiled_autograd_enabled"), ("config", "compiled_autograd"):
            for is_on in True, False:
                torch = self.Torch()
                modules = {f"torch._dynamo.{module}": types.SimpleNamespace(**{name: is_on})}
                with unittest.mock.patch.dict(sys.modules, modules):
                    _interpreter.check_backward(torch, torch)
                self.assertEqual(torch.backward_passes, 0 if is_on else 1)

    def test_wrong_numbers_are_found(self):
        from vramscope import _interpreter

        for check in _interpreter.check_operations, _interpreter.check_backward:
            with self.assertRaises(RuntimeError):
                torch = self.Torch(offset=1)
                check(torch, torch)

