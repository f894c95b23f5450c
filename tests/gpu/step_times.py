#!/usr/bin/env python3
"""How long a training step takes on PyTorch's own allocator and on vramscope's pool: not recorded, recorded, and followed live.

    step_times.py LIBVRAMSCOPE_PLUGGABLE.SO VRAMSCOPE [--rounds N] [--timed N]

Two processes that do the same differ by more than the allocators do, so each way runs in several processes, in rounds that each begin
with another way. Of each process the median step counts; printed are the median of those, their spread, and the processes' own. Processes
are forked from this one, which has PyTorch loaded and CUDA not begun, so that a round takes seconds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import torch
import train

WAYS = ("native", "vramscope", "recorded", "live")
# No round is begun that would likely end later.
LONGEST_S = 65


def run_one(way, options, folder, pipe):
    """What a forked process does: writes the times of its steps, in ms, into the pipe."""
    errors = os.open(os.path.join(folder, "errors"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 2)
    vramscope = None
    if way in ("recorded", "live"):
        os.environ["VRAMSCOPE_RECORD"] = os.path.join(folder, "a.vram")
    if way == "live":
        os.environ["VRAMSCOPE_LISTEN"] = "127.0.0.1:0"
    if way != "native":
        from vramscope_torch import Vramscope

        vramscope = Vramscope(options.library)
    net, optimizer = train.prepare()
    times = train.measure(net, optimizer, options.timed)
    os.write(pipe, json.dumps(times).encode())
    if vramscope and not vramscope.stop():
        raise SystemExit("the recording is not whole")


def listening(folder):
    """The address that the process serves its page at, once it says so."""
    for _ in range(300):
        try:
            with open(os.path.join(folder, "errors")) as errors:
                for line in errors:
                    if line.startswith("vramscope: listening: ") and line.endswith("\n"):
                        return line.split()[-1]
        except FileNotFoundError:
            pass
        time.sleep(0.05)
    raise SystemExit("no page is served")


def median_step(way, options):
    """Runs a process and gives its median step in ms."""
    with tempfile.TemporaryDirectory() as folder:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run_one(way, options, folder, writing)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                # Not through what the parent has set up for its own end.
                os._exit(status)
        os.close(writing)
        viewer = None
        if way == "live":
            command = [options.vramscope, "record", listening(folder), "-o", os.path.join(folder, "live.vram")]
            viewer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        with os.fdopen(reading, "rb") as pipe:
            times = pipe.read()
        status = os.waitpid(child, 0)[1]
        if viewer:
            viewer.wait(timeout=20)
            if os.path.getsize(os.path.join(folder, "live.vram")) == 0:
                raise SystemExit("the viewer was given nothing")
        if status != 0:
            with open(os.path.join(folder, "errors")) as errors:
                print(errors.read(), file=sys.stderr)
            raise SystemExit(f"{way}: status {status}")
        return statistics.median(json.loads(times))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("vramscope")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timed", type=int, default=60)
    options = parser.parse_args()
    medians = {way: [] for way in WAYS}
    begin = time.monotonic()
    for n in range(options.rounds):
        if n > 0 and (time.monotonic() - begin) * (n + 1) / n > LONGEST_S:
            break
        for way in WAYS[n % len(WAYS) :] + WAYS[: n % len(WAYS)]:
            medians[way].append(median_step(way, options))
    native = statistics.median(medians["native"])
    for way in WAYS:
        middle = statistics.median(medians[way])
        each = " ".join(f"{it:.2f}" for it in medians[way])
        print(
            f"{way:10} {middle:6.2f} ms a step, {100 * (middle / native - 1):+5.1f} % of native,"
            f" from {min(medians[way]):.2f} to {max(medians[way]):.2f}; processes: {each}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
