"""The fallback: snapshots at an interval, where the allocator's events cannot be followed."""

import json
import os

from harness import ProgramTest


class PollingTest(ProgramTest):
    CODE = """
    import json
    import torch
    import vramscope
    from vramscope import _polling

    kept = train()
    with vramscope.record("run.vram") as session:
        print(session.status)
        for number in range(3):
            kept += train()
            vramscope.mark(f"round {number}")
            wait_for_call(_polling.Polling, "record")
        del kept
        stays = torch.empty(1_000_000, device="cuda")
        with open("stats.json", "w") as file:
            json.dump([torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())], file)
    """

    def check(self, expected, **options):
        output, errors = self.run_program(self.CODE, **options)
        self.assertTrue(output.startswith("polling: "), output)
        self.assertIn(expected, output)
        self.assertIn("recording snapshots instead, without call stacks", errors)
        info = self.info()
        self.assertIsNone(info["damage"])
        [note] = info["notes"]
        self.assertIn("Polled: a snapshot every 100 ms", note)
        self.assertIn(expected, note)
        with open(os.path.join(self.folder, "stats.json")) as file:
            counters = json.load(file)
        for device, stats in zip(info["devices"], counters):
            for key in ("allocated_bytes", "reserved_bytes", "requested_bytes"):
                self.assertEqual(device[key], stats[f"{key}.all.current"], key)
        rows = [row for row in self.events() if row["device"] == "0"]
        rounds = [row["name"] for row in rows if row["name"].startswith("round")]
        self.assertEqual(rounds, ["round 0", "round 1", "round 2"])
        kinds = {row["kind"] for row in rows}
        self.assertLessEqual({"alloc", "free_completed", "segment_alloc"}, kinds)
        self.assertNotIn("gap", kinds)

    def test_newer_version(self):
        self.check("PyTorch 2.16.0 is not supported", version="2.16.0")

    def test_unknown_layout(self):
        self.check("unknown layout", layout=10)

    def test_unknown_slot(self):
        self.check("unknown layout", options=("-DWRONG_SLOT",))

    def check_moved_member(self, member, expected):
        output, errors = self.run_program(
            """
            import torch
            import vramscope

            with vramscope.record("run.vram") as session:
                kept = train()
                while session.status in ("waiting", "live"):
                    kept += train(1)
                    time.sleep(0.01)
                print(session.status)
            """,
            options=(f"-DMOVED_{member}",),
        )
        self.assertTrue(output.startswith("polling: the self-test failed: "), output)
        self.assertIn(expected, output)
        self.assertIn("recording snapshots instead, without call stacks", errors)
        # What the tracker reported wrongly is not recorded.
        rows = [row for row in self.events() if row["kind"] == "alloc"]
        self.assertEqual([row for row in rows if row["stream"] != "0" or row["stack"]], [])
        self.assertIsNone(self.info()["damage"])

    def test_unknown_offset_of_the_time(self):
        self.check_moved_member("TIME", "has the time")

    def test_unknown_offset_of_the_private_pool(self):
        self.check_moved_member("MEMPOOL", "differs from the state")

    def test_unknown_offset_of_the_stream(self):
        self.check_moved_member("STREAM", "differs from the state")
