"""Pinned host memory, which PyTorch has in its snapshots from 2.14 on."""

import textwrap
import unittest

from harness import ProgramTest

#: Number of the device that stands for pinned host memory.
HOST = 65535

#: Lets the thread that records snapshots see what the program has done.
WAIT = 'wait_for_call(_pinned_memory.PinnedMemory, "record_changes")'


class PinnedMemoryTest(ProgramTest):
    CODE = f"""
    import torch
    import vramscope

    before = torch.empty(3000, device="cuda")
    with vramscope.record("run.vram") as session:
        wait_until_live(session)
        kept = torch.empty(100_000, pin_memory=True)
        freed = torch.empty(1000, pin_memory=True)
        {WAIT}
        del freed
        stays = torch.empty(2000, device="cuda")
        {WAIT}
        write_log()
    """

    def run_unpaced(self, code, **options):
        """Runs a program in which every look at pinned memory may take a snapshot."""
        begin = "from vramscope import _pinned_memory\n_pinned_memory.PAUSE_FACTOR = 0\n"
        return self.run_program(begin + textwrap.dedent(code), **options)

    def pinned(self, code, minor):
        """Runs a program with PyTorch 2.``minor`` and returns pinned memory's part of ``info``;
        None if it has none."""
        _, errors = self.run_unpaced(code, version=f"2.{minor}.0", layout=minor)
        self.assertNotIn("pinned", errors)
        info = self.info()
        self.assertIsNone(info["damage"])
        return next((device for device in info["devices"] if device["device"] == HOST), None)

    def test_blocks_and_segments(self):
        for minor in (14, 15):
            with self.subTest(minor=minor):
                self.assertEqual(self.pinned(self.CODE, minor)["allocated_bytes"], 1 << 19)
                rows = [row for row in self.events() if row["device"] == str(HOST)]
                steps = [(row["kind"], int(row["size"])) for row in rows]
                self.assertCountEqual(
                    steps[:4],
                    [("segment_alloc", 1 << 19), ("segment_alloc", 4096), ("alloc", 1 << 19), ("alloc", 4096)],
                )
                self.assertEqual(steps[4:], [("free_requested", 4096), ("free_completed", 4096)])

    def test_device_memory_is_as_without_it(self):
        self.pinned(self.CODE, 14)
        self.assert_recording_equals_log()
        self.assertNotIn("snapshot", [row["name"] for row in self.events()])

    def test_earlier_versions_have_none(self):
        for minor in (11, 13):
            with self.subTest(minor=minor):
                self.assertIsNone(self.pinned(self.CODE, minor))

    def test_history_of_the_program_goes_on(self):
        code = f"""
        import torch
        import vramscope

        torch.cuda.init()
        torch.cuda.memory._record_memory_history()
        with vramscope.record("run.vram") as session:
            tensor = torch.empty(10, device="cuda")
            wait_until_live(session)
            kept = torch.empty(100_000, pin_memory=True)
            {WAIT}
            assert torch._C._cuda_isHistoryEnabled()
            torch.cuda.memory._record_memory_history(None)
            kept = [kept, torch.empty(1000, pin_memory=True)]
            {WAIT}
            # Ends the history of pinned memory, too.
            torch.cuda.memory._record_memory_history(None)
            del kept[1]
            {WAIT}
        """
        self.assertEqual(self.pinned(code, 14)["allocated_bytes"], 1 << 19)

    def test_program_without_pinned_memory_is_left_alone(self):
        code = f"""
        import torch
        import vramscope

        with vramscope.record("run.vram") as session:
            tensor = torch.empty(10, device="cuda")
            wait_until_live(session)
            {WAIT}
            assert not torch._C._pinned.allocator.has_history
        """
        self.assertIsNone(self.pinned(code, 14))

    def test_polled(self):
        output, _ = self.run_unpaced(
            f"""
            import torch
            import vramscope

            tensor = torch.empty(10, device="cuda")
            with vramscope.record("run.vram") as session:
                print(session.status)
                kept = torch.empty(100_000, pin_memory=True)
                {WAIT}
            """,
            version="2.16.0", layout=15,
        )
        self.assertTrue(output.startswith("polling"), output)
        [pinned] = [device for device in self.info()["devices"] if device["device"] == HOST]
        self.assertEqual(pinned["allocated_bytes"], 1 << 19)


if __name__ == "__main__":
    unittest.main()
