"""``vramscope.on_oom``: the recording and the sentence at the first out-of-memory."""

import os

from harness import ProgramTest


class OnOomTest(ProgramTest):
    CODE = """
    import torch
    import vramscope

    session = vramscope.on_oom("oom.vram")
    torch.cuda.synchronize()
    wait_until(lambda: not WAITS or session.status != "waiting")
    kept = []

    def fill():
        for _ in range(15):
            kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))

    def fail():
        try:
            torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            print("raised")

    fill()
    fail()
    kept.clear()
    fill()
    fail()
    """

    def test_first_failure_is_recorded_and_explained(self):
        output, errors = self.run_program(self.CODE.replace("WAITS", "True"))
        self.assertEqual(output, "raised\nraised\n")
        with open(os.path.join(self.folder, "program.py")) as file:
            lines = file.read().splitlines()
        fills, fails = (next(n for n, line in enumerate(lines, 1) if part in line) for part in ("1 << 30", "3 << 30"))
        [sentence] = [line for line in errors.splitlines() if "was allocated on" in line]
        self.assertIn(f"the line with most is program.py:{fills} (15 GiB, 100.0%).", sentence)
        self.assertIn(" What the program keeps does not fit: 15 GiB was allocated, ", sentence)
        self.assertIn(f"3 GiB at program.py:{fails} fail did not fit in the 16 GiB", sentence)
        self.assertTrue(sentence.endswith("The recording is in oom.vram."), sentence)
        self.assertEqual(self.events("oom.vram")[-1]["kind"], "oom")
        self.assertEqual(self.info("oom.vram")["devices"][0]["ooms"], 1)

    def test_failure_right_after_the_first_use_of_a_device(self):
        _, errors = self.run_program(self.CODE.replace("WAITS", "False"))
        self.assertIn(" was allocated on device 0", errors)
        self.assertEqual(self.info("oom.vram")["devices"][0]["ooms"], 1)
        self.assertEqual(self.events("oom.vram")[-1]["kind"], "oom")

    def test_first_request_fails(self):
        self.run_program(
            """
            import torch
            import vramscope

            vramscope.on_oom("oom.vram")
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
            """,
            status=1,
        )
        self.assertEqual([row["kind"] for row in self.events("oom.vram")], ["oom"])

    def test_events_after_the_failure_are_left_out(self):
        for _ in range(5):
            self.run_program(
                """
                import threading
                import torch
                import vramscope

                session = vramscope.on_oom("oom.vram")
                torch.cuda.synchronize()
                wait_until_live(session)

                def work():
                    while True:
                        torch.empty(4096, device="cuda")

                threading.Thread(target=work, daemon=True).start()
                try:
                    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
                except torch.OutOfMemoryError:
                    os._exit(0)
                """
            )
            self.assertEqual(self.events("oom.vram")[-1]["kind"], "oom")

    def test_names_are_redacted_after_another_session_has_stopped(self):
        self.run_program(
            self.CODE.replace("WAITS", "True").replace(
                'session = vramscope.on_oom("oom.vram")',
                'first = vramscope.watch("127.0.0.1:0"); session = vramscope.on_oom("oom.vram")\n'
                "    first.stop(); session = vramscope._watch._current",
            ),
            VRAMSCOPE_REDACT="1",
        )
        stacks = "".join(row["stack"] for row in self.events("oom.vram"))
        self.assertIn("function_", stacks)
        self.assertNotRegex(stacks, r"program\.py|_allocate|fill")

    def test_without_events_the_state_is_written(self):
        _, errors = self.run_program(self.CODE.replace("WAITS", "True"), version="2.16.0")
        self.assertIn("vramscope: out of memory. The recording is in oom.vram.", errors)
        self.assertIsNone(self.info("oom.vram")["damage"])

    def test_polled_recording_ends_with_the_state_at_the_failure(self):
        self.run_program(
            """
            import torch
            import vramscope

            session = vramscope.on_oom("oom.vram")
            kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(15)]
            try:
                torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                pass
            """,
            version="2.99.0",
        )
        [device] = [device for device in self.info("oom.vram")["devices"] if device["allocated_bytes"]]
        self.assertEqual(device["allocated_bytes"], 15 << 30)
