"""Sessions that record a program from its beginning, from its middle, or never."""

import os

from harness import ProgramTest


class SessionTest(ProgramTest):
    def test_early_session_records_every_event(self):
        _, errors = self.run_program(
            """
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                kept = train()
                wait_until_live(session)
                kept += train()
                torch.cuda.synchronize()
                write_log()
            """
        )
        self.assertGreater(self.assert_recording_equals_log(), 200)
        self.assertIn("run.vram: ", errors)
        self.assertTrue(self.info()["devices"][0]["history_complete"])
        self.vramscope("verify", "run.vram")

    def test_each_layout_is_recorded(self):
        for version, layout in ("2.6.0+cu124", 6), ("2.8.0", 8), ("2.10.0", 10), ("2.15.0", 15):
            with self.subTest(version=version):
                self.run_program(
                    """
                    import vramscope

                    with vramscope.record("run.vram") as session:
                        kept = train()
                        wait_until_live(session)
                        kept += train()
                        write_log()
                    """,
                    version=version,
                    layout=layout,
                )
                self.assertGreater(self.assert_recording_equals_log(), 200)

    def test_late_session_begins_with_the_current_state(self):
        self.run_program(
            """
            import vramscope

            first = train(5)
            with vramscope.record("run.vram") as session:
                wait_until_live(session)
                second = train()
                write_log()
            """
        )
        self.assertGreater(self.assert_recording_equals_log(), 100)
        self.assertFalse(self.info()["devices"][0]["history_complete"])

    def test_all_devices_are_recorded(self):
        self.run_program(
            """
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                kept = train(device="cuda:1")
                wait_until_live(session)
                kept += train(device="cuda:0") + train(device="cuda:1")
                write_log()
            """,
            STANDIN_DEVICES="2",
        )
        self.assertGreater(self.assert_recording_equals_log(), 200)
        self.assertEqual([device["events"] > 0 for device in self.info()["devices"]], [True, True])

    def test_threads_without_python_frames_are_recorded(self):
        self.run_program(
            """
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                torch._library.storm(8, 200_000, 0.5)
                write_log()
            """
        )
        self.assertGreater(self.assert_recording_equals_log(), 50_000)
        # Only the self-test's block and its segment have Python frames.
        self.assertLessEqual(sum(row["stack"] != "" for row in self.events()), 2)

    def test_failed_request_is_recorded_and_raised(self):
        self.run_program(
            """
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                try:
                    torch.empty(17 << 30, dtype=torch.uint8, device="cuda")
                except torch.OutOfMemoryError:
                    print("raised")
                write_log()
            """
        )
        self.assert_recording_equals_log()
        self.assertEqual(self.info()["devices"][0]["ooms"], 1)
        (oom,) = [row for row in self.events() if row["kind"] == "oom"]
        self.assertIn("program.py", oom["stack"])

    def test_session_after_a_session_records_again(self):
        output, _ = self.run_program(
            """
            import vramscope

            kept = train()
            with vramscope.record("first.vram") as session:
                wait_until_live(session)
                kept += train()
            kept += train()
            print(snapshots() + 1)
            with vramscope.record("second.vram") as session:
                wait_until_live(session)
                kept += train()
                write_log()
            """
        )
        self.assertGreater(self.info("first.vram")["events"], 100)
        count = self.assert_recording_equals_log("second.vram", starts_after_snapshot=int(output))
        self.assertGreater(count, 100)

    def test_second_watch_returns_the_first(self):
        output, _ = self.run_program(
            """
            import vramscope

            first = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
            second = vramscope.watch(listen="127.0.0.1:0", record="other.vram")
            print(first is second, first.url == second.url)
            kept = train()
            wait_until_live(first)
            print(first.stop(), second.stop())
            """
        )
        self.assertEqual(output, "True True\nTrue True\n")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "other.vram")))

    def test_page_is_served_before_cuda_is_initialized(self):
        output, errors = self.run_program(
            """
            import urllib.request
            import vramscope

            session = vramscope.watch(listen="127.0.0.1:0")
            print(session.status, urllib.request.urlopen(session.url).status)
            kept = train()
            wait_until_live(session)
            """
        )
        self.assertEqual(output, "waiting 200\n")
        self.assertIn("vramscope: listening: http://127.0.0.1:", errors)

    def test_marks_are_recorded(self):
        self.run_program(
            """
            import torch
            import vramscope

            vramscope.mark("no session")
            with vramscope.record("run.vram") as session:
                torch.cuda.synchronize()
                wait_until_live(session)
                vramscope.mark("first")
                kept = train()
                session.mark("second")
                vramscope.mark(3)
            vramscope.mark("no session")
            """
        )
        marks = self.marks()
        self.assertNotIn("no session", marks)
        # Others are the spans that the package marks by itself.
        self.assertEqual([name for name in marks if name in ("first", "second", "3")], ["first", "second", "3"])

    def test_recording_ends_with_the_program(self):
        endings = {
            "": 0,
            "sys.exit(3)": 3,
            "raise ValueError('expected')": 1,
            "import threading; threading.Thread(target=time.sleep, args=(30,), daemon=True).start()": 0,
        }
        for ending, status in endings.items():
            with self.subTest(ending=ending):
                code = """
                import torch
                import vramscope

                session = vramscope.watch(listen="127.0.0.1:0", record="run.vram")
                torch.cuda.synchronize()
                wait_until_live(session)
                kept = train()
                write_log()
                """
                self.run_program(code + ending.join(["\n" + 16 * " ", "\n"]), status=status)
                # The kept tensors are freed while the interpreter ends.
                self.assertGreater(self.info()["events"], 100)
                self.assertIsNone(self.info()["damage"])


class RefusalTest(ProgramTest):
    """Programs that cannot be followed: they run as without vramscope."""

    CODE = """
    import vramscope

    with vramscope.record("run.vram") as session:
        kept = train()
        wait_until(lambda: session.status != "waiting")
        print(session.status)
        vramscope.mark("ignored")
    """

    def check(self, expected, **options):
        output, errors = self.run_program(self.CODE, STANDIN_SNAPSHOT="none", **options)
        self.assertTrue(output.startswith("off: "), output)
        self.assertIn(expected, output)
        self.assertIn("cannot follow PyTorch's allocator: ", errors)
        self.assertIn(expected, errors)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "run.vram")))

    def test_unsupported_versions(self):
        self.check("PyTorch 2.5.1 is not supported: use 2.6 to 2.15", version="2.5.1")
        self.check("PyTorch 2.16.0 is not supported", version="2.16.0")
        self.check("PyTorch 3.0.0 is not supported", version="3.0.0")

    def test_other_layouts(self):
        self.check("unknown layout", layout=10)
        self.check("unknown layout", options=("-DWRONG_SLOT",))
        self.check("unknown layout", options=("-s",))

    def test_other_allocator(self):
        self.check("does not use its own caching allocator", options=("-DOTHER_ALLOCATOR",))

    def test_without_cuda_nothing_happens(self):
        output, errors = self.run_program(
            """
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                print(torch.cuda.is_available(), session.status)
                kept = train(device="cpu")
                print(session.status)
            """,
            STANDIN_DEVICES="0",
        )
        self.assertEqual((output, errors), ("False waiting\nwaiting\n", ""))

    def test_without_torch_nothing_happens(self):
        output, errors = self.run_program(
            """
            import vramscope

            with vramscope.record("run.vram") as session:
                vramscope.mark("ignored")
                print(session.status, "torch" in sys.modules)
            """
        )
        self.assertEqual((output, errors), ("waiting False\n", ""))

    def test_files_that_cannot_be_written_are_errors(self):
        output, errors = self.run_program(
            """
            import vramscope

            with open("old.vram", "w") as file:
                file.write("kept")
            for call in (
                lambda: vramscope.watch(listen="127.0.0.1:0", record="no/run.vram"),
                lambda: vramscope.record("no/run.vram").__enter__(),
                lambda: vramscope.on_oom("no/run.vram"),
                lambda: vramscope.record(os.getcwd()).__enter__(),
            ):
                try:
                    call()
                except vramscope.WatchError as error:
                    print(error)
            with vramscope.record("old.vram"):
                pass
            print(open("old.vram").read())
            """
        )
        reason = "cannot record to no/run.vram: there is no folder no\n"
        folder = f"cannot record to {os.path.realpath(self.folder)}: it is a folder\n"
        self.assertEqual((output, errors), (f"{3 * reason}{folder}kept\n", ""))

    def test_stop_tells_that_the_file_was_not_written(self):
        output, errors = self.run_program(
            """
            import vramscope

            os.mkdir("folder")
            session = vramscope.watch(listen="127.0.0.1:0", record="folder/run.vram")
            os.rmdir("folder")
            kept = train()
            wait_until_live(session)
            print(session.stop(), session.status)
            """
        )
        self.assertEqual(output, "False stopped\n")
        self.assertIn("no file is written", errors)

    def test_save_before_anything_is_recorded_is_an_error(self):
        output, _ = self.run_program(
            """
            import vramscope

            with vramscope.record("run.vram") as session:
                try:
                    vramscope.save("saved.vram")
                except vramscope.WatchError as error:
                    print(error)
            """
        )
        self.assertEqual(output, "cannot save saved.vram: nothing has been recorded yet\n")

    def test_used_port_is_named(self):
        output, errors = self.run_program(
            """
            import socket
            import vramscope

            with socket.socket() as used:
                used.bind(("127.0.0.1", 0))
                used.listen()
                port = used.getsockname()[1]
                print(port, vramscope.watch(listen=f"127.0.0.1:{port}").url)
            """
        )
        port, url = output.split()
        self.assertNotIn(f":{port}/", url)
        self.assertIn(f"vramscope: port {port} is in use; listening on port ", errors)
        self.assertEqual(errors.count("listening: "), 1, errors)

    def test_invalid_arguments_are_errors(self):
        output, _ = self.run_program(
            """
            import vramscope

            for arguments in {"listen": "nowhere"}, {"listen": "127.0.0.1:0", "stacks": "c++"}:
                try:
                    vramscope.watch(**arguments)
                except ValueError as error:
                    print(error)
            try:
                # No address of this machine.
                vramscope.watch(listen="192.0.2.1:7791")
            except vramscope.WatchError as error:
                print(type(error).__name__)
            """
        )
        self.assertEqual(len(output.splitlines()), 3, output)
        self.assertTrue(output.endswith("WatchError\n"), output)
