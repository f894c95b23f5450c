"""Snapshots that the program takes while vramscope takes its own."""

from harness import ProgramTest


class SnapshotTest(ProgramTest):
    def test_snapshot_of_the_program_is_not_taken_for_ours(self):
        for devices in "1", "2":
            with self.subTest(devices=devices):
                self.run_program(
                    """
                    import torch
                    import vramscope
                    from vramscope import _follow, _tracker_check

                    kept = []

                    def before(take_snapshot):
                        '''Takes a snapshot of the program, and allocates, before one of ours.'''
                        def take(torch):
                            torch.cuda.memory._snapshot()
                            kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
                            return take_snapshot(torch)
                        return take

                    _follow.take_snapshot = before(_follow.take_snapshot)
                    _tracker_check.take_snapshot = before(_tracker_check.take_snapshot)
                    kept.append(torch.empty(1000, device="cuda"))
                    with vramscope.record("run.vram") as session:
                        wait_until_live(session)
                        kept += train()
                        write_log()
                    """,
                    STANDIN_DEVICES=devices,
                )
                # The first snapshot is the program's.
                self.assertGreater(self.assert_recording_equals_log(starts_after_snapshot=2), 100)

    def test_check_waits_while_the_recording_is_paused(self):
        self.run_program(
            """
            import torch
            import vramscope

            kept = [torch.empty(1000, device="cuda")]
            with vramscope.record("run.vram") as session:
                wait_until_live(session)
                following = session._following
                following.pause()
                # As if an event was in flight when the recording was paused.
                session._session.set_mode("events")
                kept.append(torch.empty(1000, device="cuda"))
                assert not session._session.has_events_to_check()
                following.resume()
                kept += train()
                assert session.status == "live"
            """
        )
