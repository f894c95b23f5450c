#!/usr/bin/env python3
"""Times a training step on PyTorch's allocator and on vramscope's pool: off, recorded, and live.

    step_times.py LIBVRAMSCOPE_PLUGGABLE.SO VRAMSCOPE [--rounds N] [--timed N]

Equal processes differ by more than the allocators do, so each variant runs in several processes, in
rounds that each begin with another variant. Of each process the median step counts; prints the
median of those, their range, and each process's value. Processes are forked from this one, which
has loaded PyTorch but not started CUDA, so that a round takes seconds.
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

VARIANTS = ("native", "vramscope", "recorded", "live")
# Longest total time: a round that would exceed it is not started.
LONGEST_S = 65


def run_one(variant, options, folder, pipe):
    """Runs in a forked process: writes the times of its steps to the pipe, in ms."""
    errors = os.open(os.path.join(folder, "errors"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(errors, 2)
    vramscope = None
    if variant in ("recorded", "live"):
        os.environ["VRAMSCOPE_RECORD"] = os.path.join(folder, "a.vram")
    if variant == "live":
        os.environ["VRAMSCOPE_LISTEN"] = "127.0.0.1:0"
    if variant != "native":
        from vramscope_torch import Vramscope

        vramscope = Vramscope(options.library)
    net, optimizer = train.prepare()
    times = train.measure(net, optimizer, options.timed)
    os.write(pipe, json.dumps(times).encode())
    if vramscope and not vramscope.stop():
        raise SystemExit("the recording is not complete")


def listening(folder):
    """Waits for the URL of the page in the process's messages and returns it."""
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


def median_step(variant, options):
    """Runs a process and returns its median step in ms."""
    with tempfile.TemporaryDirectory() as folder:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                run_one(variant, options, folder, writing)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                # Skips the parent's exit handlers.
                os._exit(status)
        os.close(writing)
        viewer = None
        if variant == "live":
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
            raise SystemExit(f"{variant}: status {status}")
        return statistics.median(json.loads(times))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("vramscope")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timed", type=int, default=60)
    options = parser.parse_args()
    medians = {variant: [] for variant in VARIANTS}
    begin = time.monotonic()
    for n in range(options.rounds):
        if n > 0 and (time.monotonic() - begin) * (n + 1) / n > LONGEST_S:
            break
        for variant in VARIANTS[n % len(VARIANTS) :] + VARIANTS[: n % len(VARIANTS)]:
            medians[variant].append(median_step(variant, options))
    native = statistics.median(medians["native"])
    for variant in VARIANTS:
        middle = statistics.median(medians[variant])
        each = " ".join(f"{it:.2f}" for it in medians[variant])
        print(
            f"{variant:10} {middle:6.2f} ms a step, {100 * (middle / native - 1):+5.1f} % of native,"
            f" from {min(medians[variant]):.2f} to {max(medians[variant]):.2f}; processes: {each}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
