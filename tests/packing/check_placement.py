"""Checks placements that `vramscope pack` writes, without any code of vramscope.

    check_placement.py PLACED.csv [--capacity BYTES]

No two buffers that live at the same time may share a byte; buffers of different streams or pools
may share none at any time. Prints the number of buffers, the peak of live bytes and the height.
"""

import argparse
import csv
import gzip
import sys


def read_rows(path):
    open_file = gzip.open if path.endswith(".gz") else open
    with open_file(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = ("lower", "upper", "size", "offset")
    parse = lambda row: {**{name: int(row[name]) for name in numbers}, "id": row["id"]}
    return [{**parse(row), "arena": (row.get("stream"), row.get("mempool"))} for row in rows]


def first_overlap(rows):
    """Returns two rows that share a byte while both live, or None. A sweep over addresses keeps the
    rows whose address range is open, and compares each new one with all of them."""
    changes = []
    for number, row in enumerate(rows):
        if row["size"] > 0:
            changes.append((row["offset"], 1, number))
            changes.append((row["offset"] + row["size"], 0, number))
    open_rows = {}
    for _, starts, number in sorted(changes):
        if not starts:
            del open_rows[number]
            continue
        row = rows[number]
        for other in open_rows.values():
            lives_then = row["lower"] < other["upper"] and other["lower"] < row["upper"]
            if lives_then or row["arena"] != other["arena"]:
                return row, other
        open_rows[number] = row
    return None


def peak_live_bytes(rows):
    changes = [(row["lower"], row["size"]) for row in rows] + [(row["upper"], -row["size"]) for row in rows]
    live = peak = 0
    for _, size in sorted(changes):
        live += size
        peak = max(peak, live)
    return peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("placed", nargs="+")
    parser.add_argument("--capacity", type=int)
    arguments = parser.parse_args()
    for path in arguments.placed:
        rows = read_rows(path)
        overlap = first_overlap(rows)
        if overlap is not None:
            sys.exit(f"{path}: these buffers overlap: {overlap[0]} and {overlap[1]}")
        height = max((row["offset"] + row["size"] for row in rows), default=0)
        peak = peak_live_bytes(rows)
        if arguments.capacity is not None and height > arguments.capacity:
            sys.exit(f"{path}: height {height} is above the capacity {arguments.capacity}")
        excess = 100 * (height / peak - 1) if peak else 0
        print(f"{path}: {len(rows)} buffers, peak {peak}, height {height} (+{excess:.3f}%)")


if __name__ == "__main__":
    main()
