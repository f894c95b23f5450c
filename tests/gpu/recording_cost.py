#!/usr/bin/env python3
"""Measures the cost of recording a training step, with scopes as sites and one viewer connected.

    recording_cost.py LIBVRAMSCOPE_PLUGGABLE.SO VRAMSCOPE [--turns N] [--steps N]
                      [--scopes blocks|all|none]

Equal processes differ by more than recording costs, so one process is compared with itself: a turn
has recorded steps and as many unrecorded ones, in alternating order. While recording is off, each
event is still counted (about a nanosecond) and the scopes' hooks are called. The optimizer handles
parameters one by one, which makes more requests a second than PyTorch's fused variants. Prints the
median step of either kind, the median ratio of the turns with its 95 % interval (by resampling
turns), and the events a second.
"""

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import train
from step_times import listening


def steps(net, optimizer, tokens, count):
    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        train.step(net, optimizer, tokens)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


def measure(options, folder):
    os.environ["VRAMSCOPE_RECORD"] = os.path.join(folder, "a.vram")
    os.environ["VRAMSCOPE_LISTEN"] = "127.0.0.1:0"
    from vramscope_torch import Vramscope

    vramscope = Vramscope(options.library)
    net, _ = train.prepare()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=False, fused=False)
    if options.scopes != "none":
        vramscope.scopes(net if options.scopes == "all" else net.blocks)
    tokens = torch.randint(0, train.VOCABULARY, (2, 129), generator=torch.Generator().manual_seed(7)).cuda()
    steps(net, optimizer, tokens, 1)
    command = [options.vramscope, "record", listening(folder), "-o", os.path.join(folder, "live.vram")]
    viewer = subprocess.Popen(command)
    steps(net, optimizer, tokens, 30)
    # The collector stays off during the measurement.
    gc.collect()
    gc.freeze()
    gc.disable()
    times = {True: [], False: []}
    ratios = []
    for turn in range(options.turns):
        medians = {}
        for recorded in (turn % 2 == 0, turn % 2 == 1):
            vramscope.set_recording(recorded)
            # The first step after a change writes a full state and is not timed.
            steps(net, optimizer, tokens, 1)
            step_times = steps(net, optimizer, tokens, options.steps)
            times[recorded] += step_times
            medians[recorded] = statistics.median(step_times)
        ratios.append(medians[True] / medians[False])
    vramscope.set_recording(True)
    is_complete = vramscope.stop()
    viewer.wait(timeout=20)
    info = [options.vramscope, "info", "--json", os.path.join(folder, "a.vram")]
    info = json.loads(subprocess.run(info, capture_output=True, check=True).stdout)
    return times, ratios, is_complete, info, os.path.getsize(os.path.join(folder, "live.vram"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("vramscope")
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--scopes", choices=["blocks", "all", "none"], default="all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = os.dup(2)
        os.dup2(os.open(os.path.join(folder, "errors"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        try:
            times, ratios, is_complete, info, live_bytes = measure(options, folder)
        finally:
            os.dup2(kept, 2)
            with open(os.path.join(folder, "errors")) as errors:
                print(errors.read(), file=sys.stderr)
    recorded_s = sum(times[True]) / 1e3
    # Events in the file, of timed and other steps, over the time of all recorded steps.
    all_recorded = len(times[True]) + options.turns + 31
    rate = info["events"] / (recorded_s * all_recorded / len(times[True]))
    draw = random.Random(1)
    means = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    print(
        f"scopes {options.scopes}: recorded {statistics.median(times[True]):.3f} ms a step, not recorded"
        f" {statistics.median(times[False]):.3f} ms; ratio {statistics.median(ratios):.4f}"
        f" (95 %: {means[50]:.4f} to {means[1949]:.4f}) in {len(ratios)} turns of {options.steps};"
        f" {rate:,.0f} events a second; {info['events']:,} events recorded, a viewer took {live_bytes:,} bytes;"
        f" file complete: {is_complete}"
    )
    return 0 if is_complete and live_bytes > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
