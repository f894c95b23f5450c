"""Ranks that use one of several devices."""

from harness import BINARY, ProgramTest


class DevicesTest(ProgramTest):
    #: Trains on the device of the rank. The recording has marks, full states and gaps on all
    #: devices.
    RANK = """
    import torch

    rank = int(os.environ["LOCAL_RANK"])
    kept = train(3, device=f"cuda:{rank}")
    import vramscope
    session = vramscope._watch._current
    wait_until_live(session)
    vramscope.mark("live")
    kept += train(2, device=f"cuda:{rank}")
    if rank == 1:
        session._following.pause()
        session._following.resume()
    kept += train(2, device=f"cuda:{rank}")
    # A file that begins now begins with a full state, which the server gets, too.
    session._session.add_file(f"rank{rank}.vram", True)
    vramscope.mark("paused")
    kept += train(2, device=f"cuda:{rank}")
    """

    def test_unused_device_of_a_rank_is_left_out(self):
        program = self.write_program(self.RANK)
        launcher = self.write_program(
            f"""
            import subprocess

            ranks = [
                subprocess.Popen(
                    [sys.executable, {program!r}],
                    env=os.environ | {{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}},
                )
                for rank in range(2)
            ]
            sys.exit(max(rank.wait() for rank in ranks))
            """,
            name="launcher.py",
        )
        command = [BINARY, "run", "--listen", "127.0.0.1:0", "--record", "run.vram", launcher]
        self.run_command(*command, STANDIN_DEVICES="2")
        devices = self.info()["devices"]
        names = sorted(device["name"] for device in devices)
        self.assertEqual(names, ["rank 0 · Stand-in GPU", "rank 1 · Stand-in GPU"])
        self.assertTrue(all(device["reserved_bytes"] > 0 for device in devices), devices)
        rows = self.events()
        for name in "live", "paused":
            self.assertEqual(sorted(row["device"] for row in rows if row["name"] == name), ["0", "1"])
        self.assertEqual(sum(row["kind"] == "gap" for row in rows), 1)
