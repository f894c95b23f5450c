#!/usr/bin/env python3
"""Measures how much longer a training step takes while it is recorded.

    step_time.py PACKAGE [--out FOLDER] [--turns N] [--steps N] [--layers N] [--width N]

PACKAGE is the folder that contains the Python package. In one process, each turn has steps of every
mode, in an order that rotates: not recorded (the tracker is attached and returns at once), recorded
as `watch(stacks=None)` does (events and marks), and as `watch()` does (also stacks and categories).
Prints each mode's median step, and the median of the turns' ratios to steps that are not recorded,
with its 95% interval by resampling turns. Writes `step_time-LAYERSxWIDTH.json`. It reports figures:
its exit status does not depend on them.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time

#: Mode, call stacks, and most that the upper end of the interval shall be, in percent.
MODES = {"not recorded": (None, None), "watch(stacks=None)": (None, 2), "watch()": ("python", 4)}
BASE = "not recorded"
#: Steps of each mode before the measurement.
WARM_UP = 20
#: Steps of a turn before those that are measured: the first one after a change is no usual one.
SETTLING = 2


def set_mode(session, mode):
    """Records steps as in a mode from now on."""
    import torch
    from vramscope import _spans

    following = session._following
    following.labels.remove()
    _spans.remove()
    if mode == BASE:
        following.pause()
        return
    following.change_stacks(MODES[mode][0])
    following.resume()
    following.labels.install()
    _spans.install(torch, session._session)
    _spans.begin()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("--out", default=".")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    hook = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hook")
    sys.path[:0] = [os.path.abspath(options.package), hook]

    import torch

    import cost
    import programs
    import vramscope

    torch.manual_seed(1)
    session = vramscope.watch(listen="127.0.0.1:0", record=os.path.join(tempfile.mkdtemp(), "steps.vram"))
    net = programs.Gpt(layers=options.layers, width=options.width, heads=8).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=False, fused=False)
    batch = programs.tokens(2, 128)

    def run_steps(count):
        """Returns the mean step, in ms."""
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            programs.train_step(net, optimizer, batch)
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / count

    deadline = time.monotonic() + 30
    while session.status == "waiting" and time.monotonic() < deadline:
        run_steps(1)
    if session.status != "live":
        sys.exit(f"the recording is not live: {session.status}")
    modes = list(MODES)
    for mode in [*modes, BASE]:
        set_mode(session, mode)
        run_steps(WARM_UP)
    # A collection would fall into one step of many.
    gc.collect()
    gc.freeze()
    gc.disable()
    times = {mode: [] for mode in modes}
    for turn in range(options.turns):
        first = turn % len(modes)
        for mode in modes[first:] + modes[:first]:
            set_mode(session, mode)
            run_steps(SETTLING)
            times[mode].append(run_steps(options.steps))
    status = session.status
    set_mode(session, BASE)
    rows = []
    for mode, (_, limit) in MODES.items():
        ratios = [100 * (a / b - 1) for a, b in zip(times[mode], times[BASE])]
        low, high = cost.interval(ratios)
        row = {
            "mode": mode, "step_ms": statistics.median(times[mode]), "percent": statistics.median(ratios), "low": low,
            "high": high, "mean_percent": 100 * (sum(times[mode]) / sum(times[BASE]) - 1), "limit_percent": limit,
        }
        rows.append(row)
        verdict = "" if limit is None else f", limit {limit}%: {'within' if high <= limit else 'ABOVE'}"
        print(f"{mode:20} {row['step_ms']:7.3f} ms  {row['percent']:+.2f}% [{low:+.2f}, {high:+.2f}], "
              f"mean {row['mean_percent']:+.2f}%{verdict}", flush=True)
    about = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "turns": options.turns,
        "steps": options.steps, "layers": options.layers, "width": options.width, "status": status,
    }
    print(about)
    with open(os.path.join(options.out, f"step_time-{options.layers}x{options.width}.json"), "w") as file:
        json.dump({"about": about, "rows": rows, "times_ms": times}, file)
    session.stop()


if __name__ == "__main__":
    main()
