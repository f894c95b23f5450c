"""Checks TensorBoard exports with TensorBoard's reader against `vramscope info --json`.

    python tensorboard_events.py FOLDER ...

A FOLDER holds a folder `run.tb` and `info.json`. Prints one line a folder. Exit status: 0 correct,
1 not.
"""

import json
import pathlib
import struct
import sys

from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

# Points of a scalar that TensorBoard's server keeps by default.
SHOWN = 1000


def single(number):
    """Rounds to 32 bits, as scalars are stored."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def check(folder):
    info = json.loads((folder / "info.json").read_text())
    files = list((folder / "run.tb").iterdir())
    assert len(files) == 1, files
    # This reader verifies the checksums.
    records = sum(1 for _ in RawEventFileLoader(str(files[0])).Load())
    reader = event_accumulator.EventAccumulator(str(folder / "run.tb"), size_guidance={"scalars": SHOWN})
    reader.Reload()
    tags = reader.Tags()["scalars"]
    points = 0
    for device in info["devices"]:
        group = "host" if device["device"] == 0xFFFF else f"cuda_{device['device']}"
        scalar = {tag.removeprefix(group + "/"): reader.Scalars(tag) for tag in tags if tag.startswith(group + "/")}
        for name, line in scalar.items():
            assert len(line) <= SHOWN, name
            steps = [point.step for point in line]
            assert steps == sorted(steps), name
            points += len(line)
        for name in ("allocated", "active", "reserved", "requested"):
            current, peak = scalar[f"{name}_bytes.all.current"], scalar[f"{name}_bytes.all.peak"]
            assert current[-1].value == single(device[f"{name}_bytes"]), name
            assert max(point.value for point in current) == peak[-1].value, name
            if name in ("allocated", "reserved"):
                assert peak[-1].value == single(device[f"peak_{name}_bytes"]), name
        assert scalar["active.all.current"][-1].value == device["blocks"]
        # PyTorch's counter excludes expandable segments.
        assert scalar["segment.all.current"][-1].value in (device["segments"], 0)
        assert scalar["num_ooms"][-1].value == device["ooms"]
        assert "inactive_split_bytes.all.current" in scalar
        duration = scalar["num_ooms"][-1].wall_time - scalar["num_ooms"][0].wall_time
        assert abs(duration - info["duration_ns"] / 1e9) < 0.01 or len(info["devices"]) > 1, duration
    assert points == records - 1, "nothing was dropped"
    print(f"{folder.name}: tensorboard reads {len(tags)} scalars, {points} points; ends and peaks agree")


for folder in sys.argv[1:]:
    check(pathlib.Path(folder))
