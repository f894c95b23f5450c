"""Checks the scalars that the demo writes during training, with TensorBoard's reader.

    python tensorboard_training.py VRAMSCOPE

Trains a few steps on the host and compares the scalars with the report. Exit status: 0 correct, 1
not.
"""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from tensorboard.backend.event_processing import event_accumulator

STEPS = 4


def single(number):
    """Rounds to 32 bits, as scalars are stored."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def main():
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.argv[1], "demo", "--technique", "train", "--device", "host", "--steps", str(STEPS)]
        command += ["--json", "--tensorboard", str(pathlib.Path(folder) / "run")]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        report = json.loads(output)["reports"][0]
        reader = event_accumulator.EventAccumulator(report["tensorboard"])
        reader.Reload()
        scalars = {tag: [point.value for point in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
        assert scalars["loss"] == [single(loss) for loss in report["losses"]], scalars["loss"]
        # The callback runs within the step, which still holds its batch; the report is after it.
        pairs = zip(scalars["memory/allocated"], report["step_allocated_bytes"], strict=True)
        assert all(0 <= within - after < 1 << 20 for within, after in pairs), scalars["memory/allocated"]
        assert max(scalars["memory/peak"]) == single(report["peak_allocated_bytes"]), scalars["memory/peak"]
        assert scalars["memory/reserved"] == [single(size) for size in report["step_reserved_bytes"]]
        assert len(scalars["step_time_ms"]) == STEPS
        steps = [point.step for point in reader.Scalars("loss")]
        assert steps == sorted(set(steps)) and len(steps) == STEPS, steps
        print(f"training: tensorboard reads {len(scalars)} scalars of {STEPS} steps, equal to the report's")


main()
