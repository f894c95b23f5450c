"""The ranks of a job, started as torchrun starts them: they share a page on each machine."""

import os
import re
import sys
import threading
import time

from harness import BINARY, LIMIT, ProgramTest

#: Starts four ranks of the command in its arguments, and ends with the highest of their statuses.
#: With LAUNCHER=lightning, the ranks get the variables of Lightning's launcher, else of torchrun.
LAUNCHER = """
import socket
import subprocess

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
size = 4
environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
is_lightning = os.environ.get("LAUNCHER") == "lightning"
ranks = [
    subprocess.Popen(
        sys.argv[1:],
        env=environment | {"LOCAL_RANK": str(rank)} | ({"NODE_RANK": "0"} if is_lightning else {"RANK": str(rank)}),
    )
    for rank in range(size)
]
ranks[0].wait()
open("rank 0 has ended", "w").close()
sys.exit(max(rank.wait() for rank in ranks))
"""
#: A rank: it uses the device with the number of its local rank. It goes on once every rank has
#: joined: rank 0 does not wait at its end for a rank that is slow to start.
RANK = """
rank = int(os.environ["LOCAL_RANK"])
kept = train(3, device=f"cuda:{rank}")
wait_until_live(sys.modules["vramscope"]._watch._current)
open(f"joined {rank}", "w").close()
wait_until(lambda: all(os.path.exists(f"joined {one}") for one in range(4)))
kept += train(3, device=f"cuda:{rank}")
"""
#: The ranks' names of their devices.
NAMES = [f"rank {rank} · Stand-in GPU" for rank in range(4)]


class RanksTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write_program(LAUNCHER, "launcher.py")

    def launch(self, program, *prefix, name="rank.py", status=0, **environment):
        """Runs the launcher, after ``prefix``, with a Python command for the ranks. Returns what is
        printed on standard errors."""
        self.write_program(program, name)
        arguments = [*prefix, sys.executable, "launcher.py", sys.executable]
        process = self.start(*arguments, *self.rank_arguments, name, STANDIN_DEVICES="4", **environment)
        output, errors = process.communicate(timeout=LIMIT)
        self.assertEqual(process.returncode, status, output + errors)
        return errors

    rank_arguments = ()

    def wait_for_recording(self):
        """Waits for the server to end the recording, after ranks that did not wait for it."""
        end = time.monotonic() + LIMIT
        while self.info("all.vram")["damage"] is not None and time.monotonic() < end:
            time.sleep(0.1)

    def device_names(self, name="all.vram"):
        """Returns the names of the devices in a recording that have events, sorted."""
        lines = self.vramscope("info", name)
        return sorted(set(re.findall(r"rank \d+(?:, run \d+)? · Stand-in GPU|Stand-in GPU", lines)))

    def assert_page_has_all_ranks(self, errors, name="all.vram"):
        self.assertEqual(errors.count("listening: "), 1, errors)
        self.assertEqual(self.device_names(name), NAMES, self.vramscope("info", name))
        devices = [device for device in self.info(name)["devices"] if device["events"]]
        self.assertEqual(len(devices), 4)
        self.assertEqual({device["history_complete"] for device in devices}, {True})
        self.assertGreater(min(device["events"] for device in devices), 200)

    def test_run_shows_all_ranks(self):
        errors = self.launch(RANK, BINARY, "run", "--listen", "127.0.0.1:0", "--record", "all.vram")
        self.assert_page_has_all_ranks(errors)

    def test_python_m_vramscope_shows_all_ranks(self):
        self.rank_arguments = "-m", "vramscope", "--listen", "127.0.0.1:0", "--record", "all.vram"
        errors = self.launch(RANK)
        self.assert_page_has_all_ranks(errors)
        self.assertRegex(errors, r"vramscope: all\.vram: [\d,]+ events")
        self.assertRegex(errors, r"rank 3 \(rank\.py, process \d+\) joined")

    def test_ranks_of_lightning_are_named(self):
        self.rank_arguments = "-m", "vramscope", "--listen", "127.0.0.1:0", "--record", "all.vram"
        self.assert_page_has_all_ranks(self.launch(RANK, LAUNCHER="lightning"))

    def test_each_rank_writes_its_own_file(self):
        self.rank_arguments = "-m", "vramscope", "--listen", "127.0.0.1:0", "--record", "run-{rank}.vram"
        errors = self.launch(RANK)
        self.assertEqual(errors.count("listening: "), 1, errors)
        for rank in range(4):
            devices = self.info(f"run-{rank}.vram")["devices"]
            used = [device["device"] for device in devices if device["peak_allocated_bytes"]]
            self.assertEqual(used, [rank])

    def test_late_ranks_are_in_the_recording(self):
        # Rank 0 trains first; its server waits for the others.
        self.rank_arguments = "-m", "vramscope", "--listen", "127.0.0.1:0", "--record", "all.vram"
        is_first = 'if rank == 0:\n    open("trained", "w").close()\n'
        waits = 'if rank != 0:\n    wait_until(lambda: os.path.exists("trained"))\n'
        errors = self.launch(RANK.replace("kept +=", f"{waits}kept +=") + is_first)
        self.assert_page_has_all_ranks(errors)

    def test_failed_rank_ends_as_without_vramscope(self):
        self.rank_arguments = "-m", "vramscope", "--listen", "127.0.0.1:0", "--record", "all.vram"
        for code in "sys.exit(5)", "os._exit(5)":
            with self.subTest(code=code):
                self.launch(f"{RANK}\nif rank == 0: {code}", status=5)
                self.wait_for_recording()
                self.assertIsNone(self.info("all.vram")["damage"])

    def test_failed_rank_0_ends_before_the_others(self):
        self.rank_arguments = "-m", "vramscope", "--listen", "127.0.0.1:0", "--record", "all.vram"
        # Rank 0 would wait for the others, and they for it.
        end = """
if rank == 0:
    sys.modules["vramscope"]._ranks.STOP_TIMEOUT = 1e6
    raise ValueError
wait_until(lambda: os.path.exists("rank 0 has ended"))
"""
        errors = self.launch(RANK + end, status=1)
        self.wait_for_recording()
        self.assert_page_has_all_ranks(errors)

    def test_killed_rank_0_ends_the_recording(self):
        self.rank_arguments = "-m", "vramscope", "--listen", "127.0.0.1:0", "--record", "all.vram"
        self.launch(f"{RANK}\nif rank == 0: os.kill(os.getpid(), 9)", status=0)
        self.wait_for_recording()
        self.assertIsNone(self.info("all.vram")["damage"])

    def test_ranks_without_rank_0_have_pages_of_their_own(self):
        program = """
        import vramscope
        from vramscope import _ranks

        _ranks.JOIN_TIMEOUT = 1
        rank = int(os.environ["RANK"])
        session = None if rank == 0 else _ranks.watch("127.0.0.1:0", "run.vram")
        kept = train(1)
        """
        errors = self.launch(program)
        self.assertEqual(errors.count("has a page of its own: local rank 0 serves no page"), 3, errors)
        self.assertEqual(errors.count("listening: "), 3, errors)
        for rank in range(1, 4):
            self.assertGreater(self.info(f"run-rank{rank}.vram")["events"], 10)

    def test_ranks_push_to_a_server(self):
        server = self.start(BINARY, "serve", "--listen", "127.0.0.1:0", "--record", "all.vram")
        url = re.search(r"listening: http(\S+)", server.stdout.readline())[1]
        threading.Thread(target=server.stderr.read, daemon=True).start()
        self.rank_arguments = "-m", "vramscope", "--record", "own.vram"
        errors = self.launch(RANK, VRAMSCOPE_PUSH=f"ws{url}")
        self.assertNotIn("listening", errors)
        for rank in range(4):
            self.assertGreater(self.info(f"own-rank{rank}.vram")["events"], 200)
        server.terminate()
        server.wait(timeout=LIMIT)
        self.assertEqual(self.device_names(), NAMES)

    def test_forked_children_close_the_connection_once(self):
        self.run_program(
            """
            import socket
            import threading
            from vramscope import _ranks

            def serve():
                connection, _ = server.accept()
                socket.send_fds(connection, [b"ws://127.0.0.1:1"], [0])

            def in_child(function):
                child = os.fork()
                if child == 0:
                    try:
                        function()
                        os._exit(0)
                    finally:
                        os._exit(1)
                assert os.waitpid(child, 0)[1] == 0

            def child():
                try:
                    os.fstat(number)
                except OSError:
                    # The child uses the number for a file of its own.
                    os.dup2(os.open("/dev/null", os.O_RDONLY), number)
                    in_child(lambda: os.fstat(number))
                else:
                    raise AssertionError("the child keeps the server running")

            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            name = f"\\0vramscope-test-{os.getpid()}"
            server.bind(name)
            server.listen(1)
            threading.Thread(target=serve).start()
            number = _ranks._Connection(name)._keep_alive
            in_child(child)
            os.fstat(number)
            """
        )

    def test_server_that_does_not_start_is_given_up(self):
        command = os.path.join(self.folder, "vramscope")
        with open(command, "w") as file:
            file.write("#!/bin/sh\nexec sleep 60\n")
        os.chmod(command, 0o755)
        _, errors = self.run_program(
            f"""
            from vramscope import _ranks

            _ranks._program = lambda: {command!r}
            _ranks.START_TIMEOUT = 0.1
            session = _ranks.watch(listen="127.0.0.1:0")
            assert session.url
            """,
            WORLD_SIZE="2", RANK="0", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT="1",
        )
        self.assertIn("vramscope: rank 0 has a page of its own: the page's server does not start\n", errors)

    def test_ranks_are_recognized(self):
        output, _ = self.run_program(
            """
            from vramscope._ranks import rank_of_process

            def show(**environment):
                rank = rank_of_process(environment)
                print(rank and (rank.rank, rank.local_rank, rank.job))

            torchrun = {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1"}
            show(**torchrun, MASTER_ADDR="node1", MASTER_PORT="29500")
            show(**torchrun | {"WORLD_SIZE": "1"}, SLURM_NTASKS="4", SLURM_PROCID="2", SLURM_LOCALID="2")
            show(SLURM_NTASKS="4", SLURM_PROCID="2", SLURM_LOCALID="0", SLURM_JOB_ID="7", SLURM_STEP_ID="1")
            show(WORLD_SIZE="2", LOCAL_RANK="1", NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
            show(WORLD_SIZE="2", RANK="many", LOCAL_RANK="1")
            show()
            """
        )
        expected = ["(5, 1, 'node1:29500')", "None", "(2, 0, 'slurm 7.1')", "(1, 1, '127.0.0.1:1')", "None", "None"]
        self.assertEqual(output.splitlines(), expected)
