"""Scopes that the program opens, and names of `torch.compile`'s regions."""

import textwrap

from harness import ProgramTest


class ScopeTest(ProgramTest):
    def rows(self, code, record="run.vram"):
        """Runs a program whose requests have sizes of their own; returns scope and category of the
        requests by their size."""
        self.run_program(
            f"""
            import asyncio
            import threading
            import torch
            import vramscope

            def request(size):
                return torch.empty(size, dtype=torch.uint8, device="cuda")

            def main(session):
                {function_body(code)}

            with vramscope.record("{record}") as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                main(session)
            """
        )
        rows = [row for row in self.events(record) if row["kind"] == "alloc"]
        return {int(row["requested"]): (row["scope"], known(row["category"])) for row in rows}

    def check(self, code, expected):
        rows = self.rows(code)
        self.assertEqual({size: rows.get(size) for size in expected}, expected)

    def test_scopes_nest_and_end(self):
        self.check(
            """
            request(1001)
            with vramscope.scope("outer"):
                request(1002)
                with session.scope("inner", "workspace"):
                    request(1003)
                    with vramscope.scope("innermost"):
                        request(1004)
                request(1005)
            request(1006)
            """,
            {
                1001: ("", ""), 1002: ("outer", ""), 1003: ("outer/inner", "workspace"),
                1004: ("outer/inner/innermost", "workspace"), 1005: ("outer", ""), 1006: ("", ""),
            },
        )

    def test_error_ends_the_scope(self):
        self.check(
            """
            try:
                with vramscope.scope("failing"):
                    request(1001)
                    raise KeyError
            except KeyError:
                request(1002)
            """,
            {1001: ("failing", ""), 1002: ("", "")},
        )

    def test_decorated_functions(self):
        self.check(
            """
            @vramscope.scope("function", category="input")
            def function(size, depth):
                request(size + depth)
                return function(size, depth - 1) if depth else size

            @vramscope.scope("generator")
            def generator():
                request(1011)
                received = yield 1
                request(received)
                try:
                    yield 2
                except ValueError:
                    request(1013)
                    yield 3
                return 4

            @vramscope.scope("coroutine")
            async def coroutine(size):
                request(size)
                await asyncio.sleep(0.01)
                request(size + 1)
                return size

            assert function(1001, 1) == 1001 and function.__name__ == "function"
            steps = generator()
            assert next(steps) == 1
            request(1021)
            assert steps.send(1012) == 2
            assert steps.throw(ValueError) == 3
            try:
                next(steps)
            except StopIteration as end:
                assert end.value == 4

            async def both():
                async def other():
                    request(1041)
                    await asyncio.sleep(0.02)
                    request(1042)
                return await asyncio.gather(coroutine(1031), coroutine(1033), other())

            assert asyncio.run(both()) == [1031, 1033, None]
            request(1051)
            """,
            {
                1002: ("function", "input"), 1001: ("function/function", "input"), 1011: ("generator", ""),
                1012: ("generator", ""), 1013: ("generator", ""), 1021: ("", ""), 1031: ("coroutine", ""),
                1032: ("coroutine", ""), 1033: ("coroutine", ""), 1034: ("coroutine", ""), 1041: ("", ""),
                1042: ("", ""), 1051: ("", ""),
            },
        )

    def test_generator_that_leaves_its_scope_before_an_inner_one(self):
        self.check(
            """
            def generator():
                with vramscope.scope("generator"):
                    request(1001)
                    yield
                request(1003)
                yield

            steps = generator()
            next(steps)
            with vramscope.scope("loop"):
                request(1002)
                next(steps)
                request(1004)
            request(1005)
            """,
            {
                1001: ("generator", ""), 1002: ("generator/loop", ""), 1003: ("loop", ""), 1004: ("loop", ""),
                1005: ("", ""),
            },
        )

    def test_scope_is_of_one_thread(self):
        self.check(
            """
            def other():
                request(1001)
                with vramscope.scope("other"):
                    request(1002)

            with vramscope.scope("main"):
                for _ in range(2):
                    thread = threading.Thread(target=other)
                    thread.start()
                    thread.join()
                request(1003)
            """,
            {1001: ("", ""), 1002: ("other", ""), 1003: ("main", "")},
        )

    def test_scopes_and_modules_are_in_the_order_of_nesting(self):
        self.check(
            """
            from torch import nn

            class Block(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.inner = Inner()

                def forward(self, x):
                    request(1001)
                    with vramscope.scope("attention"):
                        request(1002)
                        return self.inner(x)

            class Inner(nn.Module):
                def forward(self, x):
                    request(1003)
                    return x

            class Net(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.block = Block()

                def forward(self, x):
                    return self.block(x)

            net = Net()
            session.annotate(net)
            x = torch.empty(1, 64, device="cuda")
            with vramscope.scope("epoch"):
                request(1004)
                net(x)
            """,
            {
                1001: ("epoch/Net/block", ""), 1002: ("epoch/Net/block/attention", ""),
                1003: ("epoch/Net/block/attention/inner", ""), 1004: ("epoch", ""),
            },
        )

    def test_scopes_without_stacks(self):
        self.run_program(
            """
            import torch
            import vramscope

            with vramscope.scope("outside", "activation"), vramscope.record("run.vram", stacks=None) as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                torch.empty(1001, dtype=torch.uint8, device="cuda")
            with vramscope.scope("nothing is recorded"):
                torch.empty(1001, dtype=torch.uint8, device="cuda")
            """
        )
        (row,) = [row for row in self.events() if row["requested"] == "1001" and row["kind"] == "alloc"]
        self.assertEqual((row["scope"], row["category"], row["stack"]), ("outside", "activation", ""))

    def test_wrong_arguments_are_refused(self):
        self.run_program(
            """
            import vramscope

            for arguments, kind, message in (
                (("a", "weights"), ValueError, "no category 'weights': use one of parameter, gradient"),
                (("a", "unknown"), ValueError, "no category"),
                (("",), ValueError, "must not be empty"),
                ((1,), TypeError, "must be a text, not 1"),
            ):
                try:
                    vramscope.scope(*arguments)
                    sys.exit(f"{arguments} accepted")
                except kind as error:
                    assert message in str(error), error

            async def generator():
                yield

            try:
                vramscope.scope("a")(generator)
                sys.exit("accepted")
            except TypeError as error:
                assert "asynchronous generator" in str(error)
            """
        )

    def test_many_threads_and_scopes(self):
        self.run_program(
            """
            import threading
            import torch
            import vramscope

            def work(number):
                for round in range(50):
                    with vramscope.scope(f"thread {number}"):
                        with vramscope.scope(f"round {round}"):
                            torch.empty(10000 + 100 * number + round, dtype=torch.uint8, device="cuda")
                    torch.empty(100000 + number, dtype=torch.uint8, device="cuda")

            with vramscope.record("run.vram") as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
                [thread.start() for thread in threads]
                [thread.join() for thread in threads]
                write_log()
            """
        )
        self.assert_recording_equals_log()
        rows = [row for row in self.events() if row["kind"] == "alloc"]
        for row in rows:
            number, round = divmod(int(row["requested"]) - 10000, 100)
            if 0 <= number < 8 and round < 50:
                self.assertEqual(row["scope"], f"thread {number}/round {round}")
            elif 100000 <= int(row["requested"]) < 100008:
                self.assertEqual(row["scope"], "")

    def test_forked_child_may_open_scopes(self):
        self.run_program(
            """
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                with vramscope.scope("parent"):
                    child = os.fork()
                    if child == 0:
                        with vramscope.scope("child"):
                            os._exit(0)
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            """
        )


class RegionTest(ProgramTest):
    #: A stand-in for the part of PyTorch that compiles functions.
    COMPILER = """
    import gc
    import types
    import torch
    import vramscope

    region = None
    hooks = {}
    cache = {}

    class Handle:
        def remove(self):
            hooks.clear()

    class Entry:
        def __init__(self, code, compile_id):
            self.code, self.compile_id = code, compile_id

    class CompileContext:
        @staticmethod
        def current_compile_id():
            return region

    def register_bytecode_hook(hook):
        hooks[0] = hook
        return Handle()

    def import_compiler():
        frames = types.ModuleType("torch._dynamo.convert_frame")
        frames.register_bytecode_hook = register_bytecode_hook
        frames.input_codes = types.SimpleNamespace(seen=[(lambda: code) for code in cache])
        evaluation = types.ModuleType("torch._dynamo.eval_frame")
        evaluation._debug_get_cache_entry_list = lambda code: cache[code]
        guards = types.ModuleType("torch._guards")
        guards.CompileContext = CompileContext
        for module in frames, evaluation, guards:
            sys.modules[module.__name__] = module

    def compiled(function, name):
        global region
        code = function.__code__.replace(co_filename=function.__code__.co_filename)
        region = name
        for hook in hooks.values():
            assert hook(function.__code__, code) is None
        region = None
        cache[function.__code__] = [Entry(code, name)]
        return types.FunctionType(code, globals())

    def request(size=1000):
        torch.empty(size, dtype=torch.uint8, device="cuda")

    def forward():
        request(1001)

    def wait_for_hook():
        wait_until(lambda: hooks)
    """

    def regions(self):
        """Returns the names of the regions of the requests by their size."""
        rows = [row for row in self.events() if row["kind"] == "alloc"]
        return {int(row["requested"]): row["compile_context"] for row in rows}

    def test_regions_have_the_names_that_pytorch_gives_them(self):
        self.run_program(
            self.COMPILER
            + """
    with vramscope.record("run.vram") as session:
        torch.cuda.synchronize()
        wait_until_live(session)
        import_compiler()
        wait_for_hook()
        compiled(forward, "0/0")()
        forward_again = compiled(lambda: request(1002), "3/1")
        forward_again()
        (lambda: request(1003))()
        del forward_again
        cache.clear()
        gc.collect()
    assert not hooks
            """
        )
        regions = self.regions()
        self.assertEqual(
            [regions[size] for size in (1001, 1002, 1003)],
            ["Torch-Compiled Region: 0/0", "Torch-Compiled Region: 3/1", ""],
        )

    def test_regions_that_were_compiled_before(self):
        self.run_program(
            self.COMPILER
            + """
    early = compiled(forward, "0/0")
    import_compiler()
    with vramscope.record("run.vram") as session:
        torch.cuda.synchronize()
        wait_until_live(session)
        wait_for_hook()
        early()
            """
        )
        self.assertEqual(self.regions()[1001], "Torch-Compiled Region: 0/0")

    def test_generated_code_is_recognized_by_its_file(self):
        self.run_program(
            self.COMPILER
            + """
    with vramscope.record("run.vram") as session:
        torch.cuda.synchronize()
        wait_until_live(session)
        exec(compile("request(1001)", "/tmp/torchinductor_user/ab/cab.py", "exec"))
        source = "def backward():\\n    request(1002)\\nbackward()"
        exec(compile(source, "/x/torch/_functorch/_aot_autograd/runtime_wrappers.py", "exec"))
            """
        )
        regions = self.regions()
        self.assertEqual(regions[1001], "Torch-Compiled Region")
        self.assertEqual(regions[1002], "Torch-Compiled Region: backward")


def known(category):
    """Returns a category; an empty text if it is unknown."""
    return "" if category == "unknown" else category


def function_body(code):
    """Returns the lines of a test as the body of a function in an indented program."""
    return textwrap.indent(textwrap.dedent(code), " " * 16).strip()
