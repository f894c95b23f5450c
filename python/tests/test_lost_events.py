"""Snapshots after lost events."""

from harness import ProgramTest


class LostEventsTest(ProgramTest):
    def test_snapshots_are_paced(self):
        # Each takes long. The pause after it is at least 50 times as long.
        self.run_program(
            """
            import torch
            import vramscope
            from vramscope import _follow

            taken = []
            take_snapshot = _follow.take_snapshot

            def take_slowly(torch):
                start = time.monotonic()
                snapshot = take_snapshot(torch)
                time.sleep(0.06)
                taken.append((start, time.monotonic()))
                return snapshot

            kept = train()
            with vramscope.record("run.vram") as session:
                kept += train()
                wait_until_live(session)
                # The check of the tracker allows no gap in the events.
                end = time.monotonic() + 200
                while not session._session.is_tracker_checked:
                    assert time.monotonic() < end, session.status
                    kept += train()
                    time.sleep(0.01)
                _follow.take_snapshot = take_slowly
                for count in range(1, 4):
                    # Nothing reads the ring meanwhile, so that it becomes full.
                    session._session.set_mode("off")
                    session._session.set_mode("events")
                    end = time.monotonic() + 200
                    while len(taken) < count:
                        assert time.monotonic() < end, taken
                        torch._library.storm(2, float("inf"), 0.2)
            for (start, end), (following, _) in zip(taken, taken[1:]):
                assert following - end >= 50 * (end - start), taken
            """
        )
        self.assertGreaterEqual(sum(row["kind"] == "gap" for row in self.events()), 3)
