"""Checks CSV exports with Python's csv module against `vramscope info --json`.

    python csv_tables.py FOLDER ...

A FOLDER holds `run.csv`, `run.lifetimes.csv` and `info.json`. Prints one line a
folder. Exit status: 0 correct, 1 not.
"""

import csv
import json
import pathlib
import sys

# A call stack is one field.
csv.field_size_limit(1 << 20)


def read(path):
    data = path.read_bytes()
    assert data.endswith(b"\r\n")
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, strict=True))
    for row in rows:
        assert None not in row and None not in row.values(), "every row has every column"
    return rows


def check(folder):
    info = json.loads((folder / "info.json").read_text())
    events, lifetimes = read(folder / "run.csv"), read(folder / "run.lifetimes.csv")
    numbers = [int(row["event"]) for row in events if row["event"]]
    assert numbers == list(range(1, info["events"] + 1)), "events are numbered from 1"
    for device in info["devices"]:
        mine = [row for row in events if row["device"] == str(device["device"]) and row["event"]]
        for name in ("allocated", "active", "reserved", "requested"):
            line = [int(row[f"{name}_bytes"]) for row in mine]
            assert line[-1] == device[f"{name}_bytes"], name
            # If memory was in use before the first event, the peak may be there.
            if name != "requested" and device["history_complete"] and max(line) > 0:
                peak = int(mine[line.index(max(line))]["event"])
                assert peak == device[f"peak_{name}_event"], f"{name}: {peak} is the peak's event number"
        alive = [row for row in lifetimes if row["device"] == str(device["device"]) and not row["completed_event"]]
        assert sum(int(row["size"]) for row in alive) == device["active_bytes"]
        assert sum(int(row["size"]) for row in alive if not row["freed_event"]) == device["allocated_bytes"]
        assert len(alive) == device["blocks"]
    print(f"{folder.name}: csv reads {len(events)} rows of events, {len(lifetimes)} of lifetimes; totals agree")


for folder in sys.argv[1:]:
    check(pathlib.Path(folder))
