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

            #: Events that the ring has room for.
            RING_EVENTS = 1 << 18
            taken = []
            take_snapshot = _follow.take_snapshot

            def take_slowly(torch):
                start = time.monotonic()
                snapshot = take_snapshot(torch)
                time.sleep(0.03)
                taken.append((start, time.monotonic()))
                return snapshot

            def pause():
                session._session.set_mode("off")
                session._session.set_mode("events")

            kept = train()
            with vramscope.record("run.vram") as session:
                kept += train()
                wait_until_live(session)
                # The check of the tracker allows no gap in the events.
                while not session._session.is_tracker_checked:
                    kept += train()
                    time.sleep(0.01)
                _follow.take_snapshot = take_slowly
                for _ in range(3):
                    count = len(taken)
                    # Nothing reads the ring until the next snapshot, so that it becomes full.
                    session._following._beginning.run(pause)
                    events = 0
                    while events <= RING_EVENTS:
                        done = torch._library.storm(1, float("inf"), 0.02)
                        events += done.allocations + 2 * done.frees
                    wait_until(lambda: len(taken) > count)
            for (start, end), (following, _) in zip(taken, taken[1:]):
                assert following - end >= 50 * (end - start), taken
            """
        )
        self.assertIn("gap", {row["kind"] for row in self.events()})
