"""PyTorch on vramscope's pool: ``use_pool`` with stand-ins for PyTorch and for the CUDA driver.

The pool is that of the extension module, or the library in ``VRAMSCOPE_POOL_LIBRARY``.
"""

import functools
import os
import re

from harness import BINARY, ProgramTest, compiled

#: What each program begins with.
START = """
    import gc
    import torch
    import vramscope

    MIB = 1 << 20

    def tensor(mib, device="cuda"):
        return torch.empty(mib * MIB, dtype=torch.uint8, device=device)

    def error_of(call, kind=RuntimeError):
        try:
            call()
        except kind as error:
            assert type(error) is kind, error
            return str(error)
        raise AssertionError("no error")
"""


@functools.cache
def standins(with_exception=True):
    """Returns the environment of programs with the stand-ins for the driver and libc10.so."""
    options = "-O1", "-Wall", "-Werror"
    driver = compiled("cuda_driver.cpp", "libcuda.so.1", *options)
    # Without its name the library is not found, as with an unknown PyTorch.
    name = "libc10.so" if with_exception else "libother.so"
    c10 = compiled("c10.cpp", name, *options, f"-Wl,-soname,{name}")
    environment = {"LD_LIBRARY_PATH": os.path.dirname(driver), "STANDIN_C10": c10}
    return environment | {name: path for name, path in os.environ.items() if name == "VRAMSCOPE_POOL_LIBRARY"}


class PoolTest(ProgramTest):
    def run_on_pool(self, code, *arguments, with_exception=True, **environment):
        program = START + code
        return self.run_program(program, *arguments, **standins(with_exception) | environment)

    def test_counters_answer_from_the_pool(self):
        self.run_on_pool(
            """
    pool = vramscope.use_pool()
    assert vramscope.use_pool() is pool
    assert torch.cuda.memory_allocated() == 0 and not torch.cuda.is_initialized()
    a = tensor(3)
    assert torch.cuda.memory_allocated() == 3 * MIB
    assert torch.cuda.memory_reserved() == 20 * MIB
    b = tensor(5)
    del b
    assert torch.cuda.max_memory_allocated() == 8 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 3 * MIB
    stats = torch.cuda.memory_stats()
    assert stats["num_device_alloc"] == 1 and stats["allocation.large_pool.allocated"] == 2
    assert stats == vramscope.memory_stats() == pool.memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["num_device_alloc"] == 0
    del a
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.cuda.memory_stats()["allocated_bytes.all.current"] == 0
    # Another device has its own pool.
    c = tensor(1, "cuda:1")
    assert torch.cuda.memory_allocated(1) == MIB and torch.cuda.memory_allocated(0) == 0
            """,
            STANDIN_DEVICES="2",
        )

    def test_out_of_memory_is_pytorchs_error_and_the_program_goes_on(self):
        self.run_on_pool(
            """
    vramscope.use_pool()
    kept = tensor(8 << 10)
    message = error_of(lambda: tensor(9 << 10), torch.OutOfMemoryError)
    assert message.startswith("CUDA out of memory. Tried to allocate 9.00 GiB. Device 0 has a total "), message
    error_of(lambda: torch.empty(1 << 62, dtype=torch.uint8, device="cuda"), torch.OutOfMemoryError)
    # In a backward pass, on another thread.
    weight = torch.empty(9 << 30, dtype=torch.uint8)
    weight.requires_grad = True
    loss = tensor(1)
    loss._inputs = (weight,)
    error_of(loss.backward, torch.OutOfMemoryError)
    del kept
    kept = tensor(9 << 10)
    assert torch.cuda.memory_stats()["num_ooms"] == 2
            """
        )

    def test_without_pytorchs_exception_out_of_memory_is_a_runtime_error(self):
        self.run_on_pool(
            """
    vramscope.use_pool()
    assert error_of(lambda: tensor(32 << 10)).startswith("CUDA out of memory. Tried to allocate 32.00 GiB.")
            """,
            with_exception=False,
        )

    def test_span_that_begins_before_the_first_request_is_recorded(self):
        self.run_on_pool(
            """
    vramscope.use_pool()
    with vramscope.record("run.vram"):
        with torch.profiler.record_function("on the host"):
            pass
        for number in (1, 2):
            with torch.profiler.record_function(f"round {number}"):
                kept = tensor(1)
            """
        )
        rows = [row for row in self.events() if row["kind"] == "mark"]
        expected = [("round 1", "begin"), ("round 1", "end"), ("round 2", "begin"), ("round 2", "end")]
        self.assertEqual([(row["name"], row["stage"]) for row in rows], expected)

    def test_settings(self):
        self.run_on_pool(
            """
    message = error_of(lambda: vramscope.use_pool("max_split_size_mb:512,expandable:True"), ValueError)
    assert message.startswith("conf: character 23: unknown setting"), message
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "garbage_collection_threshold:2"
    message = error_of(vramscope.use_pool, ValueError)
    assert message.startswith("PYTORCH_CUDA_ALLOC_CONF: character "), message
    pool = vramscope.use_pool("max_split_size_mb:512")
    a = tensor(1)
    assert torch.cuda.memory_stats()["max_split_size"] == 512 * MIB
    snapshot = torch.cuda.memory._snapshot()
    assert snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:512"
    assert vramscope.use_pool("expandable_segments:True") is pool
    b = tensor(30)
    assert [segment["is_expandable"] for segment in torch.cuda.memory_snapshot()] == [False, True]
    error_of(lambda: pool.set_settings("nonsense"), ValueError)
            """
        )

    def test_memory_fraction(self):
        self.run_on_pool(
            """
    vramscope.use_pool()
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.get_per_process_memory_fraction() == 0.25
    error_of(lambda: tensor(5 << 10), torch.OutOfMemoryError)
    torch.cuda.set_per_process_memory_fraction(1.0)
    kept = tensor(5 << 10)
            """
        )

    def test_pool_is_refused_once_cuda_or_the_allocator_is_in_use(self):
        self.run_on_pool(
            """
    torch.cuda.init()
    message = error_of(vramscope.use_pool, vramscope.PoolError)
    assert "CUDA is already initialized" in message and "before the first CUDA tensor" in message, message
            """
        )
        self.run_on_pool(
            """
    with vramscope.record("run.vram"):
        message = error_of(vramscope.use_pool, vramscope.PoolError)
    assert "before watch() or record()" in message, message
    vramscope.use_pool()
            """
        )

    def test_missing_library_is_named(self):
        self.run_on_pool(
            """
    message = error_of(vramscope.use_pool, vramscope.PoolError)
    assert message.startswith("cannot load /nowhere/library.so: "), message
            """,
            VRAMSCOPE_POOL_LIBRARY="/nowhere/library.so",
        )

    def test_recording_on_the_pool_has_scopes_steps_and_spans(self):
        _, errors = self.run_on_pool(
            """
    vramscope.use_pool()
    with vramscope.record("run.vram") as session:
        assert session.status == "live" and session.url is None
        with vramscope.scope("part", category="input"):
            kept = tensor(3)
        vramscope.mark("now")
        net = torch.nn.Sequential(torch.nn.Linear(64, 256, device="cuda"), torch.nn.ReLU())
        session.annotate(net)
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            net(torch.empty(32, 64, device="cuda")).backward()
            optimizer.step()
            optimizer.zero_grad()
        vramscope.save("saved.vram")
            """
        )
        self.assertRegex(errors, r"\Avramscope: .*run\.vram: \d+ events, .*\n\Z")
        rows = self.events()
        self.assertEqual([row["scope"] for row in rows if row["kind"] == "alloc"][0], "part")
        self.assertIn("step 2", self.marks())
        self.assertIn("now", self.marks())
        # Three steps, each with the beginning and the end of its passes.
        self.assertEqual([self.marks().count(name) for name in ("forward", "backward")], [6, 6])
        self.assertGreater(self.info("saved.vram")["events"], 40)
        device = self.info()["devices"][0]
        self.assertTrue(device["history_complete"])
        self.assertIn('"divergence":null', self.vramscope("verify", "run.vram", "--json").replace(" ", ""))

    def test_annotate_names_modules_as_the_hook_does(self):
        code = """
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mlp = torch.nn.Linear(64, 64, device="cuda")

        def forward(self, x):
            return self.mlp(x), torch.empty(2, 64, device="cuda")

    class GPT(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList([Block(), Block()])
            self.head = torch.nn.Sequential(torch.nn.Linear(64, 8, device="cuda"), torch.nn.ReLU())

        def forward(self, x):
            kept = [torch.empty(3, 64, device="cuda")]
            for block in self.blocks:
                with vramscope.scope("block"):
                    x, more = block(x)
                kept.append(more)
            return self.head(x), kept

    class Failing(torch.nn.Module):
        def forward(self, x):
            raise ValueError

    kept = torch.empty(1, device="cuda")
    net, failing = GPT(), Failing()
    with vramscope.record(NAME) as session:
        for _ in range(2):
            session.annotate(net)
            session.annotate(failing)
        with vramscope.scope("epoch"):
            kept = [net(torch.empty(32, 64, device="cuda"))]
        error_of(lambda: failing(kept), ValueError)
        kept.append(torch.empty(5, 64, device="cuda"))
        import copy, pickle
        copy.deepcopy(net._forward_pre_hooks), pickle.dumps(net._forward_hooks)
    kept.append(net(torch.empty(32, 64, device="cuda")))
        """
        self.run_on_pool("    vramscope.use_pool()\n" + code.replace("NAME", '"run.vram"'))
        waits = code.replace("for _ in", "wait_until_live(session)\n        for _ in", 1)
        self.run_on_pool(waits.replace("NAME", '"hook.vram"'))
        scopes = {
            name: [row["scope"] for row in self.events(name) if row["kind"] == "alloc"]
            for name in ("run.vram", "hook.vram")
        }
        self.assertEqual(scopes["run.vram"], scopes["hook.vram"])
        self.assertIn("epoch/GPT/block/blocks/1/mlp", scopes["run.vram"])

    def test_late_recording_begins_with_the_pools_state(self):
        self.run_on_pool(
            """
    vramscope.use_pool()
    kept = [tensor(3), tensor(7)]
    for name in ("first.vram", "run.vram"):
        with vramscope.record(name):
            kept.append(tensor(5))
            del kept[0]
            """
        )
        for name, allocated in (("first.vram", 12), ("run.vram", 10)):
            info = self.info(name)
            device = info["devices"][0]
            self.assertEqual((info["lost_events"], device["allocated_bytes"]), (0, allocated << 20))
            self.assertFalse(device["history_complete"])
            self.assertIn('"divergence":null', self.vramscope("verify", name, "--json").replace(" ", ""))

    def test_snapshot_has_history_once_it_is_recorded(self):
        self.run_on_pool(
            """
    vramscope.use_pool()
    kept = tensor(3)
    snapshot = torch.cuda.memory._snapshot()
    assert snapshot["device_traces"] == [[]], snapshot["device_traces"]
    [segment] = snapshot["segments"]
    assert (segment["total_size"], segment["allocated_size"], segment["segment_type"]) == (20 * MIB, 3 * MIB, "large")
    assert [block["state"] for block in segment["blocks"]] == ["active_allocated", "inactive"]
    assert torch.cuda.memory_snapshot() == snapshot["segments"]
    assert torch.cuda.memory_snapshot((0, 7)) == []
    torch.cuda.memory._record_memory_history()
    more = tensor(5)
    del more
    actions = [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]]
    assert actions == ["alloc", "free_requested", "free_completed"], actions
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    # A session takes over.
    with vramscope.record("run.vram"):
        torch.cuda.memory._record_memory_history(enabled=None)
        more = tensor(5)
    assert torch.cuda.memory._snapshot()["device_traces"] == [[]]
            """
        )
        self.assertEqual(self.info("snapshot.pickle")["devices"][0]["allocated_bytes"], 3 << 20)
        self.vramscope("import", "snapshot.pickle", "-o", "imported.vram")
        self.vramscope("verify", "imported.vram")
        self.assertEqual(self.info()["devices"][0]["allocated_bytes"], 8 << 20)

    def test_page(self):
        _, errors = self.run_on_pool(
            """
    import urllib.request
    vramscope.use_pool()
    kept = tensor(3)
    session = vramscope.watch(listen="127.0.0.1:0")
    assert vramscope.watch() is session
    address, token = session.url.split("?")
    with urllib.request.urlopen(f"{address}trace.vram?{token}") as answer:
        assert answer.status == 200
    assert session.stop()
    error_of(lambda: vramscope.watch(listen="nonsense"), vramscope.WatchError)
    vramscope.watch(listen="127.0.0.1:0").stop()
            """
        )
        self.assertEqual(len(re.findall(r"listening: http", errors)), 3, errors)

    def test_recording_of_the_environment_is_adopted(self):
        self.run_on_pool(
            """
    vramscope.use_pool()
    kept = tensor(3)
    error_of(lambda: vramscope.record("other.vram").__enter__(), vramscope.WatchError)
    session = vramscope.watch()
    session.mark("here")
    assert session.stop()
            """,
            VRAMSCOPE_RECORD="run.vram",
        )
        self.assertEqual(self.marks(), ["here"])
        self.assertTrue(self.info()["devices"][0]["history_complete"])

    def test_on_oom(self):
        _, errors = self.run_on_pool(
            """
    vramscope.use_pool()
    vramscope.on_oom("oom.vram")
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *details: seen.append(details))
    kept = tensor(8 << 10)
    error_of(lambda: tensor(9 << 10), torch.OutOfMemoryError)
    assert seen == [(0, 9 << 30, 16 << 30, 8 << 30)], seen
            """
        )
        self.assertIn("The recording is in oom.vram.", errors)
        self.assertEqual(self.info("oom.vram")["devices"][0]["ooms"], 1)

    def test_what_the_pool_lacks_is_refused_with_the_cause(self):
        self.run_on_pool(
            """
    pool = vramscope.use_pool()
    assert pool.incomplete == "libc10_cuda.so is not loaded", pool.incomplete
    message = error_of(torch.cuda.MemPool)
    assert message == f"torch.cuda.MemPool does not work on vramscope's pool: {pool.incomplete}"
            """
        )
        self.run_on_pool(
            """
    import vramscope._attach
    vramscope.use_pool()
    message = error_of(vramscope._attach.check, vramscope._attach.AttachError)
    assert "vramscope's pool" in message, message
            """
        )

    def test_forked_process_leaves_the_pool_alone(self):
        self.run_on_pool(
            """
    vramscope.use_pool()
    with vramscope.record("run.vram"):
        kept = tensor(3)
        child = os.fork()
        if child == 0:
            os._exit(torch.cuda.memory._snapshot is None)
        assert os.waitpid(child, 0)[1] == 0
        kept = tensor(5)
            """
        )
        self.assertEqual(self.info()["devices"][0]["allocated_bytes"], 5 << 20)

    def test_program_of_vramscope_run_pushes_from_the_pool(self):
        path = self.write_program(
            START
            + """
    vramscope.use_pool()
    net = torch.nn.Sequential(torch.nn.Linear(64, 256, device="cuda"), torch.nn.ReLU())
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        net(torch.empty(32, 64, device="cuda")).backward()
        optimizer.step()
            """
        )
        self.run_command(BINARY, "run", "--listen", "127.0.0.1:0", "--record", "run.vram", path, **standins())
        self.assertGreater(self.info()["devices"][0]["allocated_bytes"], 0)
        self.assertIn("step 3", self.marks())

    def test_oldest_and_newest_version(self):
        for minor in (6, 15):
            self.run_on_pool(
                """
    vramscope.use_pool()
    kept = tensor(3)
    assert torch.cuda.memory_allocated() == 3 * MIB
    assert len(torch.cuda.memory._snapshot()["segments"]) == 1
                """,
                version=f"2.{minor}.0+standin",
                layout=minor,
            )

    def test_unsupported_version_is_refused(self):
        self.run_on_pool(
            """
    message = error_of(vramscope.use_pool, vramscope.PoolError)
    assert message == "PyTorch 2.5.1+standin is not supported: use 2.6 to 2.15", message
            """,
            version="2.5.1+standin",
        )
