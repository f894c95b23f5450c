"""``watch()`` and ``record()`` in a session that ``on_oom``, ``run`` or ``attach`` has started."""

import os
import subprocess
import sys

from harness import BINARY, LIMIT, ProgramTest
from test_pool import standins

RUN = [BINARY, "run", "--listen", "127.0.0.1:0"]
FAIL = """
try:
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("raised")
"""


class SessionInUseTest(ProgramTest):
    def exists(self, name):
        return os.path.exists(os.path.join(self.folder, name))

    def assert_ends_with_failure(self, name="oom.vram"):
        rows = self.events(name)
        self.assertEqual(rows[-1]["kind"], "oom", rows[-3:])
        self.assertEqual([row for row in rows if row["kind"] == "gap"], [])

    def test_watch_after_on_oom_has_its_page_and_its_file(self):
        for use in "", "torch.empty(1, device='cuda'); wait_until_live(session)":
            with self.subTest(use=use):
                output, errors = self.run_program(
                    f"""
                    import urllib.request
                    import torch
                    import vramscope

                    session = vramscope.on_oom("oom.vram")
                    {use}
                    session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
                    print(urllib.request.urlopen(session.url).status)
                    kept = train(1)
                    wait_until_live(session)
                    kept += train()
                    vramscope.mark("last")
                    print(session.stop())
                    """
                )
                self.assertEqual(output, "200\nTrue\n")
                self.assertIn("listening: http://127.0.0.1:", errors)
                self.assertIn("run.vram: ", errors)
                self.assertIn("last", self.marks())
                self.vramscope("verify", "run.vram")
                os.remove(os.path.join(self.folder, "run.vram"))

    def test_late_file_has_all_events_from_the_call_on(self):
        output, _ = self.run_program(
            """
            import torch
            import vramscope

            session = vramscope.on_oom("oom.vram")
            kept = train()
            wait_until_live(session)
            torch.cuda.memory._snapshot()
            print(snapshots())
            with vramscope.record("run.vram") as block:
                assert block.status == "live"
                kept += train(50)
                write_log()
            kept += train(5)
            """
        )
        self.assertGreater(self.assert_recording_equals_log(starts_after_snapshot=int(output)), 1000)

    def test_watch_after_on_oom_chooses_stacks(self):
        for stacks in None, "python":
            self.run_program(
                f"""
                import torch
                import vramscope

                session = vramscope.on_oom("oom.vram")
                torch.empty(1, device="cuda")
                wait_until_live(session)
                session = vramscope.watch(listen="127.0.0.1:0", record="run.vram", stacks={stacks!r})
                kept = train()
                """
            )
            found = {row["stack"] for row in self.events() if row["kind"] == "alloc"}
            # Requests of the backward pass have none in the stand-in.
            self.assertEqual(found == {""}, stacks is None, found)

    def test_arguments_that_have_no_effect_are_named(self):
        _, errors = self.run_program(
            """
            import vramscope

            vramscope.watch(listen="127.0.0.1:0", record="run.vram")
            vramscope.watch()
            vramscope.watch(record="run.vram")
            vramscope.watch(listen="127.0.0.1:9", record="other.vram", stacks=None)
            """
        )
        self.assertEqual(errors.count("has no effect"), 1, errors)
        self.assertIn(
            "watch(listen='127.0.0.1:9', record='other.vram', stacks=None) has no effect: a session is in progress, "
            "with its page at http://127.0.0.1:", errors,
        )

    def test_record_after_on_oom(self):
        output, _ = self.run_program(
            """
            import torch
            import vramscope

            session = vramscope.on_oom("oom.vram")
            with vramscope.record("first.vram") as block:
                torch.empty(1, device="cuda")
                wait_until_live(block)
                vramscope.mark("first")
                try:
                    with vramscope.record("nested.vram"):
                        pass
                except vramscope.WatchError as error:
                    print(error)
            print(block.status, session.status)
            vramscope.mark("between")
            with vramscope.record("second.vram"):
                vramscope.mark("second")
            with vramscope.record("third.vram"):
                kept = train()
            """ + FAIL.replace("\n", "\n            ")
        )
        self.assertEqual(
            output, "a session is in progress: stop it first, or use its save()\nstopped live\nraised\n"
        )
        self.assertEqual([self.marks(f"{name}.vram") for name in ("first", "second")], [["first"], ["second"]])
        self.assertFalse(self.exists("nested.vram"))
        self.assertGreater(self.info("third.vram")["events"], 50)
        self.assert_ends_with_failure()

    def run_block_without_a_file(self, start, use):
        """Runs a program with a block of ``record()`` whose file cannot be written, in a session
        that ``start`` starts. ``use`` runs while the file is being opened. Checks what the program
        prints on standard error, and returns its standard output."""
        output, errors = self.run_program(
            f"""
            import torch
            import vramscope
            from vramscope import _attach, _watch

            class Session:
                '''A session that can write no file.'''

                def __init__(self, session):
                    self._session = session

                def __getattr__(self, name):
                    return getattr(self._session, name)

                def add_file(self, path, can_end):
                    {use}
                    raise RuntimeError(f"{{path}}: no thread can be started")

            {start}
            session = _watch._current
            session._session = Session(session._session)
            with vramscope.record("first.vram") as block:
                session._session = session._session._session
                vramscope.mark("not recorded")
                if _watch._current is not None:
                    with vramscope.record("run.vram") as other:
                        kept = train()
                        wait_until_live(other)
                        block.stop()
                        assert session._block is other
                        vramscope.mark("recorded")
            print(block.stop(), session.status, session._block, _watch._current is session)
            """
        )
        self.assertIn("vramscope: first.vram: no thread can be started; no file is written\n", errors)
        self.assertNotIn("has no effect", errors)
        self.assertFalse(self.exists("first.vram"))
        return output

    def test_block_without_a_file_makes_room_for_another_one(self):
        output = self.run_block_without_a_file("vramscope.on_oom('oom.vram')", "pass")
        self.assertEqual(output, "False live None True\n")
        marks = self.marks()
        self.assertIn("recorded", marks)
        self.assertNotIn("not recorded", marks)

    def test_session_of_attach_ends_with_a_block_without_a_file(self):
        # The command ends while the block begins.
        output = self.run_block_without_a_file("_attach.start('127.0.0.1:9')", "_attach.stop()")
        self.assertEqual(output, "False stopped None False\n")

    def test_record_without_cuda_writes_nothing(self):
        output, errors = self.run_program(
            """
            import vramscope

            vramscope.on_oom("oom.vram")
            with vramscope.record("run.vram") as block:
                pass
            print(block.stop())
            """
        )
        self.assertEqual((output, errors), ("True\n", ""))
        self.assertFalse(self.exists("run.vram"))

    def test_record_and_watch_under_run(self):
        self.write_program(
            """
            import torch
            import vramscope

            torch.empty(1, device="cuda")
            with vramscope.record("block.vram") as session:
                wait_until_live(session)
                kept = train()
            session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
            kept += train()
            vramscope.mark("last")
            print(session.url.partition("?")[0][:17])
            """
        )
        output, _ = self.run_command(*RUN, "--record", "outer.vram", "program.py")
        self.assertEqual(output, "http://127.0.0.1:\n")
        self.assertGreater(self.info("block.vram")["events"], 50)
        self.assertNotIn("last", self.marks("block.vram"))
        self.assertIn("last", self.marks("run.vram"))
        self.assertIn("last", self.marks("outer.vram"))

    def test_watch_alone_under_run_is_silent(self):
        self.write_program("import torch\nimport vramscope\nprint(vramscope.watch().url)\nkept = train()")
        output, errors = self.run_command(*RUN, "program.py")
        self.assertEqual((output, "has no effect" in errors), ("None\n", False), errors)

    def test_record_under_python_m_vramscope(self):
        self.write_program(
            """
            import vramscope

            with vramscope.record("block.vram") as session:
                kept = train(1)
                wait_until_live(session)
                kept = train()
            vramscope.mark("after")
            """
        )
        command = [sys.executable, "-m", "vramscope", "--listen", "127.0.0.1:0", "--record", "outer.vram"]
        self.run_command(*command, "program.py")
        self.assertGreater(self.info("block.vram")["events"], 50)
        self.assertIn("after", self.marks("outer.vram"))

    def test_program_keeps_the_session_that_attach_started(self):
        code = """
        import torch

        kept = train()
        print("ready", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
        import vramscope
        from vramscope import _watch

        USE
            print("recording", flush=True)
            while not _watch._current._ended.is_set():
                time.sleep(0.01)
            kept += train()
            vramscope.mark("last")
        print(_watch._current)
        """
        uses = {
            "block": ('with vramscope.record("run.vram"):', "None"),
            "watch": ('with vramscope.watch(listen="127.0.0.1:0", record="run.vram"):', "None"),
        }
        for name, (use, left) in uses.items():
            with self.subTest(name=name):
                program = self.write_program(code.replace("USE", use))
                process = subprocess.Popen(
                    [sys.executable, program], cwd=self.folder, env=self.variables(), text=True,
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                )
                self.addCleanup(process.kill)
                self.assertEqual(process.stdout.readline(), "ready\n")
                attach = self.start(BINARY, "attach", str(process.pid), "--listen", "127.0.0.1:0", "--no-open")
                self.assertTrue(any("attached to process" in line for line in attach.stderr), "not attached")
                open(os.path.join(self.folder, "go"), "w").close()
                self.assertEqual(process.stdout.readline(), "recording\n")
                attach.terminate()
                output, errors = process.communicate(timeout=LIMIT)
                self.assertEqual((process.returncode, output), (0, f"{left}\n"), errors)
                self.assertIn("last", self.marks())
                os.remove(os.path.join(self.folder, "run.vram"))
                os.remove(os.path.join(self.folder, "go"))

    def test_on_oom_outlives_the_session_that_it_used(self):
        uses = {
            "watch": 'w = vramscope.watch(listen="127.0.0.1:0", record="run.vram")\nvramscope.on_oom("oom.vram")\n'
                     "kept = train()\nwait_until_live(w)\nw.stop()",
            "record": 'with vramscope.record("run.vram") as w:\n    vramscope.on_oom("oom.vram")\n    kept = train()\n'
                      "    wait_until_live(w)",
            "watch after": 'vramscope.on_oom("oom.vram")\n'
                           'w = vramscope.watch(listen="127.0.0.1:0", record="run.vram")\n'
                           "kept = train()\nwait_until_live(w)\nw.stop()",
        }
        for name, use in uses.items():
            with self.subTest(name=name):
                code = f"import torch\nimport vramscope\n{use}\n" \
                    'filled = torch.empty(8 << 30, dtype=torch.uint8, device="cuda")\n' + FAIL
                output, errors = self.run_program(code, VRAMSCOPE_RECORD="")
                self.assertEqual(output, "raised\n")
                self.assertIn("the line with most is program.py:", errors)
                self.assertIn("The recording is in oom.vram.", errors)
                self.assert_ends_with_failure()
                self.assertIsNone(self.info("run.vram")["damage"])
                self.assertEqual(self.info("run.vram")["devices"][0]["ooms"], 0)

    def test_next_session_of_on_oom_leaves_the_file_of_the_environment(self):
        self.run_program(
            """
            import torch
            import vramscope

            with vramscope.watch() as session:
                vramscope.on_oom("oom.vram")
                kept = train()
                wait_until_live(session)
                vramscope.mark("kept")
            """ + FAIL.replace("\n", "\n            "),
            VRAMSCOPE_RECORD="run.vram", VRAMSCOPE_LISTEN="127.0.0.1:0",
        )
        self.assertIn("kept", self.marks())
        self.assert_ends_with_failure()

    def test_on_oom_can_be_stopped(self):
        output, errors = self.run_program(
            """
            import torch
            import vramscope
            from vramscope import _watch

            vramscope.on_oom("oom.vram").stop()
            print(_watch._current)
            """ + FAIL.replace("\n", "\n            ")
        )
        self.assertEqual((output, errors), ("None\nraised\n", ""))


class PoolSessionInUseTest(ProgramTest):
    CODE = """
    import torch
    import vramscope

    vramscope.use_pool()
    BEGIN
    kept = [torch.empty(8, device="cuda")]
    with vramscope.record("block.vram") as session:
        vramscope.mark("block")
        kept.append(torch.empty(8, device="cuda"))
    session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
    vramscope.mark("last")
    kept.append(torch.empty(8, device="cuda"))
    print(session.stop(), session.status)
    """

    def test_sessions_on_the_pool(self):
        output, _ = self.run_program(
            self.CODE.replace("BEGIN", 'vramscope.on_oom("oom.vram")') + FAIL.replace("\n", "\n    "), **standins()
        )
        self.assertEqual(output, "True stopped\nraised\n")
        self.assertEqual((self.marks("block.vram"), self.marks()), (["block"], ["last"]))
        self.assertEqual(self.events("oom.vram")[-1]["kind"], "oom")

    def test_sessions_on_the_pool_under_run(self):
        self.write_program(self.CODE.replace("BEGIN", ""))
        output, errors = self.run_command(*RUN, "--record", "outer.vram", "program.py", **standins())
        self.assertEqual(output, "True stopped\n", errors)
        self.assertEqual(self.marks("block.vram"), ["block"])
        for name in "run.vram", "outer.vram":
            self.assertEqual(self.marks(name)[:2], ["block", "last"])
