#!/usr/bin/env python3
"""Prints how much of a recording's peak has a call stack, a module and a scope.

    attribution.py RECORDING.csv    (of `vramscope export --to csv`)
"""

import csv
import sys
from collections import Counter


def main():
    live, total, peak, at_peak = {}, 0, 0, {}
    with open(sys.argv[1], newline="") as file:
        for row in csv.DictReader(file):
            if row["kind"] == "alloc":
                live[row["address"]] = row
                total += int(row["size"])
                if total > peak:
                    peak, at_peak = total, dict(live)
            elif row["kind"] == "free_requested" and row["address"] in live:
                total -= int(live.pop(row["address"])["size"])
    sizes = Counter()
    scopes = Counter()
    for row in at_peak.values():
        size = int(row["size"])
        sizes["no stack" if row["site_id"] == "0" else "stack"] += size
        first = row["scope"].split("/")[0] if row["scope"] else "none"
        scopes[first] += size
    print(f"peak {peak}:", {name: f"{100 * size / peak:.1f} %" for name, size in sizes.items()},
          {name: f"{100 * size / peak:.1f} %" for name, size in scopes.most_common(6)})


if __name__ == "__main__":
    main()
