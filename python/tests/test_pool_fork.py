"""Forked workers on vramscope's pool, with stand-ins for PyTorch and for the CUDA driver. As
with CUDA, the driver does not work in a child of a process that has used it before the fork."""

import json
import os
import re
import textwrap

import test_fork
from harness import ProgramTest
from test_pool import standins


class PoolWorkersTest(ProgramTest):
    """Workers on vramscope's pool, which their parent chose and has not used."""

    WORK = test_fork.WorkersTest.WORK + """
    import vramscope

    MIB = 1 << 20

    def work(steps=2):
        global kept
        kept = train(steps)
        with vramscope.scope("own", category="input"):
            kept += torch.empty(3 * MIB, dtype=torch.uint8, device="cuda"),
        vramscope.mark("child")
        with open(f"stats of process {os.getpid()}.json", "w") as file:
            json.dump(torch.cuda.memory_stats(), file)

    def run_workers(context=multiprocessing.get_context("fork"), target=work):
        workers = [context.Process(target=target) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0, worker
    """

    run_workers = test_fork.WorkersTest.run_workers

    def run_on_pool(self, code, **environment):
        return self.run_program(textwrap.dedent(self.WORK) + textwrap.dedent(code), **standins(), **environment)

    def stats(self):
        """Returns the counters of each worker by the process's name."""
        found = {}
        for name in os.listdir(self.folder):
            if name.startswith("stats of "):
                with open(os.path.join(self.folder, name)) as file:
                    found[name[len("stats of "):-len(".json")]] = json.load(file)
        return found

    def assert_workers_are_on_the_page(self, count):
        """Compares each device of the recording with the counters of its process; returns the
        devices."""
        devices, stats = self.info()["devices"], self.stats()
        names = [re.match(r"program\.py, (process \d+) ·", device["name"]) for device in devices]
        self.assertEqual({name and name[1] for name in names}, set(stats), devices)
        self.assertEqual((len(devices), len(stats)), (count, count), devices)
        for name, device in zip(names, devices):
            for key in ("allocated_bytes", "reserved_bytes", "requested_bytes"):
                self.assertEqual(device[key], stats[name[1]][f"{key}.all.current"], key)
            self.assertTrue(device["history_complete"], device)
        self.vramscope("verify", "run.vram")
        return devices

    def events_by_device(self):
        """Returns each device's events without addresses, times, and the machine's memory, of which
        samples are taken at times."""
        found = {}
        for row in (row for row in self.events() if row["kind"] != "memory_sample"):
            columns = ("kind", "size", "requested", "stream", "scope", "category", "name", "stage")
            found.setdefault(row["device"], []).append([row.get(column) for column in columns])
        return list(found.values())

    def test_workers_that_were_forked_after_use_pool_have_pools_of_their_own(self):
        self.run_on_pool("vramscope.use_pool()\nrun_workers()\nrun_workers()\n")
        self.assertEqual(len(self.stats()), 8)

    def test_workers_of_a_watching_parent_leave_its_file_alone(self):
        self.run_on_pool(
            """
            vramscope.use_pool()
            session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
            session.annotate(torch.nn.Linear(1, 1, device="cpu"))
            run_workers()
            assert vramscope._watch._current is session and session.status == "live"
            kept = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
            assert session.stop()
            """
        )
        self.assertEqual(len(self.stats()), 4)
        self.assertEqual(self.info()["devices"][0]["allocated_bytes"], 5 << 20)
        self.assertNotIn("child", self.marks())

    def test_workers_are_processes_of_their_own_on_the_page(self):
        _, errors = self.run_workers("vramscope.use_pool()\nrun_workers()\n", **standins())
        self.assert_workers_are_on_the_page(4)
        first, *others = self.events_by_device()
        self.assertEqual(others, [first] * 3)
        self.assertTrue({"child", "step 1", "step 2"} <= set(self.marks()), self.marks())
        self.assertIn("own", {row["scope"] for row in self.events()})
        self.assertNotIn("connection to the process lost", self.marks())
        self.assertNotIn("vramscope: cannot", errors)

    def test_children_of_workers_and_the_parent_are_processes_too(self):
        self.run_workers(
            """
            def parent():
                assert wait_for(fork(work, 3)) == 0
                work()

            vramscope.use_pool()
            assert wait_for(fork(parent)) == 0
            work()
            """,
            **standins(),
        )
        self.assert_workers_are_on_the_page(3)

    def test_worker_of_a_rank_on_the_pool_is_not_another_run_of_that_rank(self):
        self.run_workers(
            """
            def worker():
                os.environ["RANK"] = os.environ["LOCAL_RANK"] = "1"
                work()

            vramscope.use_pool()
            for child in [fork(work), fork(worker)]:
                assert wait_for(child) == 0
            work()
            """,
            RANK="0", LOCAL_RANK="0", **standins(),
        )
        names = sorted(device["name"].partition(" · ")[0] for device in self.info()["devices"])
        self.assertRegex(names[0], r"program\.py, process \d+")
        self.assertEqual(names[1:], ["rank 0", "rank 1"])

    def test_each_worker_has_a_file_of_its_own(self):
        self.run_on_pool(
            "vramscope.use_pool()\nvramscope.watch(listen='127.0.0.1:0')\nrun_workers()\n", VRAMSCOPE_RECORD="run.vram",
        )
        stats = self.stats()
        self.assertEqual(len(stats), 4)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "run.vram")))
        for name, counters in stats.items():
            file = f"run-{name.rpartition(' ')[2]}.vram"
            self.assertEqual(self.info(file)["devices"][0]["allocated_bytes"], counters["allocated_bytes.all.current"])
            self.vramscope("verify", file)

    def test_settings_observers_and_open_scopes_apply_in_workers(self):
        self.run_workers(
            """
            def child():
                assert torch.cuda.memory._snapshot()["segments"] == []
                work()
                assert torch.cuda.memory_stats()["max_split_size"] == 512 * MIB
                try:
                    torch.empty(32 << 30, dtype=torch.uint8, device="cuda")
                except torch.cuda.OutOfMemoryError:
                    assert seen == [32 << 30], seen
                    sys.exit(0)
                sys.exit(1)

            seen = []
            pool = vramscope.use_pool("max_split_size_mb:256")
            torch._C._cuda_attach_out_of_memory_observer(lambda _device, requested, *_: seen.append(requested))
            pool.set_settings("max_split_size_mb:512")
            vramscope.on_oom("oom.vram")
            with vramscope.scope("outer"):
                child = fork(child)
            assert wait_for(child) == 0
            assert not os.path.exists("oom.vram")
            """,
            **standins(),
        )
        self.assertIn("outer/own", {row["scope"] for row in self.events()})

    def test_worker_that_was_forked_after_the_first_request_is_refused(self):
        _, errors = self.run_on_pool(
            """
            def refused():
                # Not PyTorch's own check.
                try:
                    torch._library.alloc(0, 4096, 0)
                except RuntimeError as error:
                    assert "cannot allocate in a forked process" in str(error), error
                else:
                    sys.exit("no error")
                if parent == os.getppid():
                    assert wait_for(fork(refused)) == 0
                    session = vramscope.watch()
                    assert session.status.startswith("off: this process was forked after CUDA"), session.status
                    session.mark("child")
                    session.stop()

            parent = os.getpid()
            vramscope.use_pool()
            with vramscope.record("run.vram"):
                kept = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
                assert wait_for(fork(refused)) == 0
            """
        )
        self.assertEqual(self.info()["devices"][0]["allocated_bytes"], 5 << 20)
        self.assertEqual(errors.count("this process was forked after CUDA was used"), 1, errors)

    def test_history_that_the_parent_keeps_is_kept_in_workers(self):
        self.run_on_pool(
            """
            def child():
                work()
                actions = [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]]
                assert len(actions) > 50, actions

            vramscope.use_pool()
            torch.cuda.memory._record_memory_history()
            assert wait_for(fork(child)) == 0
            """
        )

    #: What another thread holds when the process forks.
    LOCKS = ("_watch._lock._lock", "_pool._lock._lock", "_pool_session._lock._lock")

    def test_fork_while_another_thread_holds_a_lock(self):
        for lock in self.LOCKS:
            with self.subTest(lock=lock):
                self.run_on_pool(
                    f"""
                    from vramscope import _pool, _pool_session, _watch

                    vramscope.use_pool()
                    is_held, may_end = threading.Event(), threading.Event()

                    def hold():
                        with {lock}:
                            is_held.set()
                            may_end.wait()

                    holder = threading.Thread(target=hold)
                    holder.start()
                    is_held.wait()
                    child = fork(work)
                    may_end.set()
                    holder.join()
                    assert wait_for(child) == 0
                    """
                )
