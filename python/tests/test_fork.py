"""Forked children: they neither crash nor change the parent's recording, and are recorded if CUDA
was not used before the fork."""

import json
import os
import re
import textwrap

from harness import BINARY, ProgramTest
from test_pool import standins


class ForkTest(ProgramTest):
    def check(self, child, status=0):
        self.run_program(
            f"""
            import gc
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                kept = train()
                wait_until_live(session)
                for _ in range(3):
                    child = os.fork()
                    if child == 0:
                        {child}
                    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                    assert ended == {status}, ended
                kept += train()
                write_log()
            """
        )
        self.assertGreater(self.assert_recording_equals_log(), 100)

    def test_child_that_ends_at_once(self):
        self.check("os._exit(0)")

    def test_child_that_frees_and_allocates(self):
        self.check("del kept; gc.collect(); torch._library.alloc(0, 4096, 0); os._exit(0)")

    def test_child_that_marks_and_asks(self):
        self.check("vramscope.mark('child'); session.status; os._exit(0)")

    def test_child_that_exits_as_a_program(self):
        self.check("sys.exit(0)")

    def test_child_that_raises(self):
        self.check("raise ValueError('expected')", status=1)

    def test_child_that_watches(self):
        self.check("print(vramscope.watch(listen='127.0.0.1:0').status); os._exit(0)")

    def test_children_of_multiprocessing(self):
        self.run_program(
            """
            import multiprocessing
            import torch
            import vramscope

            def double(number):
                return 2 * number

            session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
            kept = train()
            wait_until_live(session)
            with multiprocessing.get_context("fork").Pool(3) as pool:
                assert pool.map(double, range(100)) == list(range(0, 200, 2))
                pool.close()
                pool.join()
            kept += train()
            write_log()
            session.stop()
            """
        )
        self.assertGreater(self.assert_recording_equals_log(), 100)


class WorkersTest(ProgramTest):
    """Children that were forked before CUDA was used."""

    #: Trains in a process that `vramscope run` follows, and writes the log of its allocator.
    WORK = """
    import json
    import multiprocessing
    import threading
    import torch

    def work(steps=2):
        global kept
        import vramscope
        kept = train(steps)
        wait_until_live(vramscope._watch._current)
        kept += train(steps)
        # The parent of processes with its rank writes its log last.
        for name in f"process {os.getpid()}", f"rank {os.environ.get('RANK')}":
            with open(f"log of {name}.json", "w") as file:
                json.dump([torch._library.log(0), torch.cuda.memory_stats(0)], file)

    def wait_for(child):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def fork(function, *arguments):
        child = os.fork()
        if child == 0:
            function(*arguments)
            sys.exit(0)
        return child
    """

    def run_workers(self, code, **environment):
        """Runs a program under `vramscope run`, and returns its standard output and errors."""
        path = self.write_program(textwrap.dedent(self.WORK) + textwrap.dedent(code))
        command = [BINARY, "run", "--listen", "127.0.0.1:0", "--record", "run.vram", path]
        return self.run_command(*command, **environment)

    def assert_workers_are_recorded(self, count):
        """Compares each device of the recording with the log of the process that it belongs to."""
        devices = self.info()["devices"]
        names = [re.match(r"(?:program\.py, )?(process \d+|rank \d+) ·", device["name"]) for device in devices]
        self.assertTrue(all(names), devices)
        self.assertEqual(len({name[1] for name in names}), count, devices)
        self.assertEqual(len(devices), count, devices)
        merged = {"logs": [], "stats": []}
        for name in names:
            with open(os.path.join(self.folder, f"log of {name[1]}.json")) as file:
                log, stats = json.load(file)
            merged["logs"].append(log)
            merged["stats"].append(stats)
        with open(os.path.join(self.folder, "log.json"), "w") as file:
            json.dump(merged, file)
        self.assertGreater(self.assert_recording_equals_log(), 50 * count)
        self.vramscope("verify", "run.vram")
        return devices

    def test_workers_of_multiprocessing_are_processes_of_their_own(self):
        _, errors = self.run_workers(
            """
            workers = [multiprocessing.get_context("fork").Process(target=work) for _ in range(4)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
                assert worker.exitcode == 0, worker
            """
        )
        self.assert_workers_are_recorded(4)
        self.assertNotIn("connection to the process lost", self.marks())
        self.assertNotIn("cannot follow", errors)

    def test_workers_that_set_their_rank_are_ranks(self):
        self.run_workers(
            """
            def worker(rank):
                os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
                work()

            for child in [fork(worker, rank) for rank in range(4)]:
                assert wait_for(child) == 0
            """
        )
        names = sorted(device["name"] for device in self.assert_workers_are_recorded(4))
        self.assertEqual([name.partition(" · ")[0] for name in names], [f"rank {rank}" for rank in range(4)])

    def test_worker_of_a_rank_is_not_another_run_of_that_rank(self):
        self.run_workers("children = [fork(work) for _ in range(2)]\nfor child in children:\n"
                         "    assert wait_for(child) == 0\nwork()\n", RANK="0", LOCAL_RANK="0")
        names = sorted(device["name"] for device in self.assert_workers_are_recorded(3))
        self.assertEqual([name[:7] for name in names], ["program", "program", "rank 0 "], names)

    def test_child_of_a_child_is_recorded(self):
        self.run_workers(
            """
            def parent():
                child = fork(work, 3)
                assert wait_for(child) == 0
                work()

            assert wait_for(fork(parent)) == 0
            work()
            """
        )
        self.assert_workers_are_recorded(3)

    def test_child_without_cuda_costs_no_thread_and_is_not_shown(self):
        _, errors = self.run_workers(
            """
            import vramscope

            def resources():
                return len(os.listdir("/proc/self/task")), sorted(os.listdir("/proc/self/fd"))

            def child():
                assert resources() == (1, known), resources()
                vramscope.mark("child")
                with vramscope.scope("child"), torch.profiler.record_function("child"):
                    pass
                assert resources() == (1, known), resources()

            _, known = resources()
            assert wait_for(fork(child)) == 0
            work()
            """
        )
        self.assert_workers_are_recorded(1)
        self.assertNotIn("child", self.marks())

    def test_child_keeps_the_scopes_that_are_open(self):
        self.run_workers(
            """
            import vramscope

            def child():
                with vramscope.scope("inner"):
                    work()

            with vramscope.scope("outer"):
                assert wait_for(fork(child)) == 0
            work()
            """
        )
        devices = self.assert_workers_are_recorded(2)
        scopes = {}
        for row in self.events():
            if row["kind"] == "alloc":
                scopes.setdefault(row["device"], set()).add("/".join(row["scope"].split("/")[:2]))
        self.assertIn({"outer/inner", "outer", ""}, [found | {"outer", ""} for found in scopes.values()], devices)

    def test_file_of_the_parent_is_left_to_it(self):
        self.run_program(
            self.WORK
            + """
    import vramscope

    def child():
        assert vramscope._watch._current is None
        torch.cuda.synchronize()
        kept = train()
        vramscope.mark("child")
        sys.exit(0)

    session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
    for worker in [fork(child) for _ in range(3)]:
        assert wait_for(worker) == 0
    kept = train()
    wait_until_live(session)
    kept += train()
    write_log()
    assert session.stop()
            """,
        )
        self.assertGreater(self.assert_recording_equals_log(), 50)
        self.assertEqual(os.listdir(self.folder).count("run.vram"), 1)
        self.assertNotIn("child", self.marks())

    def test_child_watches_with_a_file_of_its_own(self):
        self.run_program(
            self.WORK
            + """
    import vramscope

    def child():
        session = vramscope.watch(listen="127.0.0.1:0")
        kept = train()
        wait_until_live(session)
        assert session.stop()

    vramscope.watch(listen="127.0.0.1:0")
    workers = [fork(child) for _ in range(2)]
    for worker in workers:
        assert wait_for(worker) == 0
    print(*workers)
            """,
            VRAMSCOPE_RECORD="run.vram",
        )
        files = sorted(name for name in os.listdir(self.folder) if name.endswith(".vram"))
        self.assertEqual(len(files), 2, files)
        for name in files:
            self.assertRegex(name, r"run-\d+\.vram")
            self.assertGreater(self.info(name)["events"], 50)

    def test_child_does_not_report_out_of_memory_to_the_file_of_its_parent(self):
        self.run_program(
            self.WORK
            + """
    import vramscope

    def child():
        try:
            torch.empty(32 << 30, dtype=torch.uint8, device="cuda")
        except torch.cuda.OutOfMemoryError:
            sys.exit(0)
        sys.exit(1)

    session = vramscope.on_oom("oom.vram")
    assert wait_for(fork(child)) == 0
    assert not os.path.exists("oom.vram")
            """
        )

    def test_child_after_the_first_use_of_cuda_is_off_and_says_so(self):
        _, errors = self.run_workers(
            """
            import vramscope

            def quiet():
                vramscope.mark("child")
                assert vramscope._watch._current is None

            def asks():
                first, second = vramscope.watch(), vramscope.watch()
                assert first is second and first.url is None and first.status.startswith("off: "), first.status
                first.mark("child")
                with vramscope.scope("child"):
                    first.stop()

            kept = train()
            wait_until_live(vramscope._watch._current)
            assert wait_for(fork(quiet)) == 0
            assert wait_for(fork(asks)) == 0
            work()
            """
        )
        lines = [line for line in errors.splitlines() if "forked" in line]
        self.assertEqual(len(lines), 1, errors)
        self.assertIn("this process was forked after CUDA was used, so CUDA does not work in it", lines[0])
        self.assertEqual(errors.count("listening"), 1, errors)
        self.assert_workers_are_recorded(1)
        self.assertNotIn("child", self.marks())

    def test_child_uses_the_pool_that_its_parent_has_not_used(self):
        self.run_program(
            self.WORK
            + """
    import vramscope

    def child():
        kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_allocated() == 3 << 20

    vramscope.use_pool()
    assert wait_for(fork(child)) == 0
    kept = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == 5 << 20
            """,
            **standins(),
        )

    #: What another thread holds when the process forks.
    LOCKS = (
        "_watch._lock._lock", "session._following._beginning._lock", "session._following._stopped._cond",
        # `torch.manual_seed()` holds it, and the first use of CUDA.
        "torch.cuda._initialization_lock",
    )

    def test_fork_while_another_thread_holds_a_lock(self):
        for lock in self.LOCKS:
            with self.subTest(lock=lock):
                self.run_workers(
                    f"""
                    import vramscope
                    from vramscope import _watch

                    session = _watch._current
                    is_held, may_end = threading.Event(), threading.Event()

                    def hold():
                        with {lock}:
                            is_held.set()
                            may_end.wait()

                    def child():
                        vramscope.mark("child")
                        assert vramscope.watch() is _watch._current is not session
                        with torch.profiler.record_function("a"), vramscope.scope("a"):
                            pass
                        _watch._current.stop()
                        assert vramscope.watch() is _watch._current
                        # PyTorch's own would keep any child from using CUDA.
                        torch.cuda._initialization_lock = threading.Lock()
                        work()

                    holder = threading.Thread(target=hold)
                    holder.start()
                    is_held.wait()
                    assert wait_for(fork(child)) == 0
                    may_end.set()
                    holder.join()
                    work()
                    """
                )
                self.assert_workers_are_recorded(2)

    #: What is done in a child, and may fail.
    STEPS = ("_pool_session.continue_in_child", "_scopes.enter_again", "_out_of_memory.forget")

    def test_fork_while_a_step_fails(self):
        for step in self.STEPS:
            with self.subTest(step=step):
                _, errors = self.run_workers(
                    f"""
                    import vramscope
                    from vramscope import _out_of_memory, _pool_session, _scopes, _watch

                    session = _watch._current
                    is_held, may_end = threading.Event(), threading.Event()

                    def hold():
                        is_held.set()
                        may_end.wait()

                    def child():
                        assert _watch._current is not session
                        assert vramscope.watch() is _watch._current
                        work()

                    {step} = lambda: 1 / 0
                    holder = threading.Thread(target=_watch._lock.run, args=(hold,))
                    holder.start()
                    is_held.wait()
                    assert wait_for(fork(child)) == 0
                    may_end.set()
                    holder.join()
                    work()
                    """
                )
                self.assert_workers_are_recorded(2)
                message = "the recording of this forked process may be incomplete: ZeroDivisionError"
                self.assertEqual(errors.count(message), 1, errors)
