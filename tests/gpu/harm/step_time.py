#!/usr/bin/env python3
"""Measures how much longer a training step takes in a watched process than in one that is not.

    step_time.py PACKAGE [--out FOLDER] [--turns N] [--steps N] [--restarts N] [--layers N]
                 [--width N]

PACKAGE is the folder that contains the Python package. Each mode has a process of its own
(timed_process.py), with equal model, seed and warm-up, on one GPU: not watched, where vramscope is
not imported; not watched, again, whose difference shows what processes differ by anyway;
`watch(stacks=None)` (events and marks); and `watch()` (also stacks and categories). In a turn each
process runs its steps while the others wait, in an order that rotates. The turns are spread over
restarts of all processes, because the speed of a process also depends on its addresses.

Prints each mode's median step, and the median of the turns' ratios to the process that is not
watched. The 95% interval is by resampling restarts, and turns within each: it covers how turns of a
process differ, and how processes differ from start to start, as far as so few starts show it. It
does not cover other models, GPUs or machines. Writes `step_time-LAYERSxWIDTH.json`. It reports
figures: its exit status does not depend on them.
"""

import argparse
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BASE = "not watched"
#: Most that the upper end of a mode's interval shall be, in percent.
MODES = {BASE: None, "not watched, again": None, "watch(stacks=None)": 2, "watch()": 4}
#: Arguments of the processes that are watched.
WATCHED = {"watch(stacks=None)": ["--stacks", "none"], "watch()": ["--stacks", "python"]}
#: Steps of a turn before those that are measured: another process has used the GPU.
SETTLING = 2
#: Longest wait for a reply, in seconds.
LIMIT = 300
#: Longest wait for the exit of a process that no longer replies, in seconds.
EXIT_LIMIT = 5


class TimedProcess:
    """A process that runs training steps on request. ``name`` is its mode."""

    def __init__(self, name, options, folder):
        self.name = name
        self._errors = tempfile.TemporaryFile()
        command = [sys.executable, os.path.join(HERE, "timed_process.py"), str(options.layers), str(options.width)]
        if name in WATCHED:
            record = os.path.join(tempfile.mkdtemp(dir=folder), "steps.vram")
            command += ["--package", os.path.abspath(options.package), "--record", record, *WATCHED[name]]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("VRAMSCOPE_")}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=variables, bufsize=0
        )
        self._received = b""

    def read(self):
        """Returns the next reply. Ends the script if none comes within the limit."""
        deadline = time.monotonic() + LIMIT
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self._fail(f"does not reply within {LIMIT} s")
            part = self._process.stdout.read(65536)
            if not part:
                self._fail("has ended")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    def run_steps(self, count):
        """Returns the mean step, in ms."""
        try:
            self._process.stdin.write(b"%d\n" % count)
        except BrokenPipeError:
            self._fail("has ended")
        return self.read()

    def end(self):
        """Lets the process end; returns the status of its recording, None if it is not watched."""
        self._process.stdin.close()
        status = self.read()
        try:
            code = self._process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self._fail(f"does not end within {LIMIT} s")
        if code != 0:
            self._fail("fails at its end")
        return status

    def kill(self):
        self._process.kill()
        self._process.wait()

    def _fail(self, problem):
        try:
            self._process.wait(EXIT_LIMIT)
        except subprocess.TimeoutExpired:
            # The process prints the stacks of its threads, and ends.
            self._process.send_signal(signal.SIGABRT)
            self._process.wait()
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace")
        sys.exit(f"{errors}\nthe process of {self.name} {problem} (exit code {self._process.returncode})")


def rotated(items, number):
    first = number % len(items)
    return items[first:] + items[:first]


def measure(options, folder, restart, turns, times):
    """Starts a process for each mode, and adds the mean steps of each turn, in ms, to ``times``.
    Returns what the processes say about the GPU and the recordings."""
    processes = []
    try:
        processes += [TimedProcess(mode, options, folder) for mode in rotated([*MODES], restart)]
        about = [process.read() for process in processes][0]
        for turn in turns:
            for process in rotated(processes, turn):
                process.run_steps(SETTLING)
                times[process.name].append(process.run_steps(options.steps))
        about["status"] = {process.name: process.end() for process in processes}
        return about
    finally:
        for process in processes:
            process.kill()


def median_interval(groups):
    """Returns the 95% interval of the median of all groups' values, by resampling the groups and
    the values of each."""
    draw = random.Random(1)
    medians = []
    for _ in range(1000):
        drawn = draw.choices(groups, k=len(groups))
        medians.append(statistics.median(value for group in drawn for value in draw.choices(group, k=len(group))))
    medians.sort()
    return medians[25], medians[974]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("package")
    parser.add_argument("--out", default=".")
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--restarts", type=int, default=4)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    if not 1 <= options.restarts <= options.turns:
        parser.error("--restarts must be at least 1, and at most the number of turns")

    times = {mode: [] for mode in MODES}
    #: The first turn of each restart, and the number of turns.
    bounds = [options.turns * restart // options.restarts for restart in range(options.restarts + 1)]
    parts = list(zip(bounds, bounds[1:]))
    with tempfile.TemporaryDirectory() as folder:
        for restart, (first, end) in enumerate(parts):
            about = measure(options, folder, restart, range(first, end), times)
            print(f"restart {restart + 1} of {options.restarts}: {end} turns", file=sys.stderr, flush=True)
    rows = []
    for mode, limit in MODES.items():
        ratios = [100 * (a / b - 1) for a, b in zip(times[mode], times[BASE])]
        groups = [ratios[first:end] for first, end in parts]
        low, high = median_interval(groups)
        row = {
            "mode": mode, "step_ms": statistics.median(times[mode]), "percent": statistics.median(ratios), "low": low,
            "high": high, "mean_percent": 100 * (sum(times[mode]) / sum(times[BASE]) - 1), "limit_percent": limit,
            "restarts_percent": [statistics.median(group) for group in groups],
        }
        rows.append(row)
        verdict = "" if limit is None else f", limit {limit}%: {'within' if high <= limit else 'ABOVE'}"
        restarts = " ".join(f"{percent:+.2f}" for percent in row["restarts_percent"])
        print(f"{mode:20} {row['step_ms']:7.3f} ms  {row['percent']:+.2f}% [{low:+.2f}, {high:+.2f}], "
              f"mean {row['mean_percent']:+.2f}%, restarts {restarts}{verdict}", flush=True)
    about |= {
        "turns": options.turns, "steps": options.steps, "restarts": options.restarts, "layers": options.layers,
        "width": options.width,
    }
    print(about)
    with open(os.path.join(options.out, f"step_time-{options.layers}x{options.width}.json"), "w") as file:
        json.dump({"about": about, "rows": rows, "times_ms": times}, file)


if __name__ == "__main__":
    main()
