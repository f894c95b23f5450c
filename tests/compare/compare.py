#!/usr/bin/env python3
"""Compares two builds of one program, run alternately, and prints ratios with 95% intervals.

    compare.py [--runs 15] [--rows [--column 1]] OLD_COMMAND NEW_COMMAND

Each command is one quoted string. Without --rows the wall time of the whole command is compared.
With --rows the commands print lines that end in numbers, as `cargo bench --bench speed` does; lines
are paired by their position, and the last number of each is compared; --column 2 compares the
number before it. The order of old and new changes from run to run, so that drift of a shared
machine affects both.

The exit status is 1 if an interval lies entirely above --limit (default 1.03).
"""

import argparse
import random
import re
import shlex
import statistics
import subprocess
import sys
import time

NUMBERS = re.compile(r"(?:(?:^|\s+)\d[\d,]*(?:\.\d+)?)+$")


def run(command, column):
    """Returns the wall time of a command or, unless `column` is 0, that number of its rows.

    The last number of a row is column 1, the one before it column 2.
    """
    begin = time.perf_counter()
    result = subprocess.run(shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - begin
    if result.returncode != 0:
        sys.exit(f"{command}: exit status {result.returncode}\n{result.stderr}")
    if column == 0:
        return {"wall time, s": seconds}
    values = {}
    for line in result.stdout.splitlines():
        match = NUMBERS.search(line.strip())
        if match and match.start() > 0:
            numbers = match.group().replace(",", "").split()
            name = line.strip()[: match.start()]
            values[f"{len(values) + 1:2} {name}"] = float(numbers[-min(column, len(numbers))])
    return values


def interval(ratios, draws=4000):
    """Returns the 95% bootstrap interval of the median ratio."""
    generator = random.Random(1)
    medians = sorted(statistics.median(generator.choices(ratios, k=len(ratios))) for _ in range(draws))
    return medians[int(draws * 0.025)], medians[int(draws * 0.975)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--column", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1.03)
    parser.add_argument("old")
    parser.add_argument("new")
    arguments = parser.parse_args()
    column = arguments.column if arguments.rows else 0
    pairs = []
    for turn in range(arguments.runs):
        if turn % 2 == 0:
            old, new = run(arguments.old, column), run(arguments.new, column)
        else:
            new, old = run(arguments.new, column), run(arguments.old, column)
        pairs.append((list(old.items()), list(new.items())))
    slower = False
    print(f"{'':62} {'old':>10} {'new':>10} {'ratio':>7}  95% interval")
    for row in range(min(min(len(old), len(new)) for old, new in pairs)):
        name = pairs[0][1][row][0]
        olds = [old[row][1] for old, _ in pairs]
        news = [new[row][1] for _, new in pairs]
        if min(olds + news) <= 0:
            continue  # A counter, such as the number of waits.
        ratios = [new / old for old, new in zip(olds, news)]
        low, high = interval(ratios)
        slower |= low > arguments.limit
        mark = "  SLOWER" if low > arguments.limit else ""
        print(
            f"{name[:62]:62} {statistics.median(olds):10.3f} {statistics.median(news):10.3f} "
            f"{statistics.median(ratios):7.3f}  {low:.3f} to {high:.3f}{mark}"
        )
    sys.exit(1 if slower else 0)


if __name__ == "__main__":
    main()
