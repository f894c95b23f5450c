#!/usr/bin/env python3
"""Compares the cost of recording a training step in two builds, on a machine with a GPU.

    steps.py [--runs 4] OLD_BENCHMARK NEW_BENCHMARK

Each argument is the executable of the collector's benchmark `step`. The two run in alternating
order. Printed for each build: the time of a recorded step, that of a step that is not recorded, and
their ratio, as medians over the runs; then the ratio of new to old for both recorded times.
"""

import argparse
import re
import statistics
import subprocess

# Older builds write "ms a step".
LINE = re.compile(r"^[\w ]+: recorded ([\d.]+) ms (?:a|per) step, not recorded ([\d.]+) ms; ratio ([\d.]+)")


def run(benchmark):
    output = subprocess.run([benchmark, "--bench"], capture_output=True, text=True, check=True).stdout
    found = [LINE.match(line) for line in output.splitlines()]
    rows = [[float(match[n]) for n in (1, 2, 3)] for match in found if match]
    results = dict(zip(("paced", "unpaced"), rows))
    if not results:
        raise SystemExit(f"{benchmark} measured nothing:\n{output}")
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("old")
    parser.add_argument("new")
    arguments = parser.parse_args()
    runs = {"old": [], "new": []}
    for turn in range(arguments.runs):
        for build in ("old", "new") if turn % 2 == 0 else ("new", "old"):
            runs[build].append(run(getattr(arguments, build)))
            print(turn, build, runs[build][-1], flush=True)
    for name in runs["new"][0]:
        for build in ("old", "new"):
            recorded, plain, ratio = (statistics.median(run[name][n] for run in runs[build]) for n in range(3))
            print(f"{name}, {build}: recorded {recorded:.4f} ms, not recorded {plain:.4f} ms, ratio {ratio:.4f}")
        ratios = sorted(new[name][0] / old[name][0] for old, new in zip(runs["old"], runs["new"]))
        costs = sorted(new[name][2] / old[name][2] for old, new in zip(runs["old"], runs["new"]))
        for what, values in (("recorded step", ratios), ("ratio recorded to not recorded", costs)):
            print(f"{name}, new to old, {what}: median {statistics.median(values):.4f}, "
                  f"{values[0]:.4f} to {values[-1]:.4f} in {len(values)} pairs")


if __name__ == "__main__":
    main()
