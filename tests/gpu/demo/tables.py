"""Checks on a GPU that the demo's tables add up to the pool's counters, exactly.

    tables.py VRAMSCOPE [--device cuda|host]

The tables by phase, line and operation of the running program (`demo --tables`) must add up to the
allocated bytes at the end, and those of its recording (`vramscope table`) to the counters of
`vramscope info`, and to the sums of all allocations. The exit status is 1 if a sum differs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

TECHNIQUES = ("train", "keep-outputs", "checkpoint-blocks", "mixed-bf16", "resnet", "batch-search", "kv-cache")
KEYS = ("phase", "line", "op", "module", "category", "site")


def run(*command):
    """Runs a command that prints JSON."""
    process = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: {process.stderr.strip()[-2000:]}")
    return json.loads(process.stdout)


def differences(vramscope, technique, device, folder):
    """Returns the sums that differ, as pairs of name and figures, and the number of sums."""
    record = str(folder / f"{technique}.vram")
    arguments = ("--technique", technique, "--device", device, "--json", "--tables", "--record", record)
    report = run(vramscope, "demo", *arguments)["reports"][0]
    end = report["end_allocated_bytes"]
    tables = report["tables"]

    def total(table, key, is_counted=lambda row: True):
        return sum(row[key] for row in tables[table]["rows"] if is_counted(row))

    steps = total("phase", "kept_in_all_bytes", lambda row: row["name"] == "step")
    sums = {
        "phase": (steps + tables["phase"]["outside_bytes"], end),
        "line": (total("line", "live_bytes"), end),
        "op": (total("op", "own_allocated_bytes"), end),
    }
    info = run(vramscope, "info", record, "--json")["devices"][0]
    expected = {"peak": info["peak_allocated_bytes"], "end": info["active_bytes"]}
    allocated = set()
    for key in KEYS:
        for moment, bytes_ in expected.items():
            table = run(vramscope, "table", record, "--by", key, "--at", moment, "--json")["devices"][0]
            live = sum(row["bytes"] for row in table["rows"])
            # At the peak of allocated bytes, blocks that are pending free are active, too.
            pending = table["pending_bytes"] if moment == "peak" else 0
            sums[f"recording by {key} at the {moment}"] = (live - pending, bytes_)
            allocated.add(sum(row["allocated_bytes"] for row in table["rows"]))
    sums["bytes of all allocations, by every key"] = (len(allocated), 1)
    return [(name, pair) for name, pair in sums.items() if pair[0] != pair[1]], len(sums)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("vramscope", help="The vramscope binary")
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    options = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for technique in TECHNIQUES:
            different, count = differences(options.vramscope, technique, options.device, Path(folder))
            failed |= bool(different)
            print(f"{'FAIL' if different else 'PASS'}  {technique}: {count} sums, different: {different}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
