#!/usr/bin/env python3
"""Compares what vramscope's hook records with PyTorch's own history, for many programs.

    hook.py VRAMSCOPE [--out FOLDER] [--jobs N] [--late] [NAME...]

Each program (programs.py) runs in a process of its own, with PyTorch's history on. Afterwards the
events of both must be equal, in order; the end state must be the snapshot's, the counters those of
`memory_stats`, and `vramscope verify` must match every decision. With --late, the hook starts in
the middle of a program, and the events from there on are compared.
"""

import argparse
import concurrent.futures
import csv
import gc
import json
import os
import pickle
import subprocess
import sys

from results import report

# Not the private pool: PyTorch's entries do not name it.
FIELDS = ("device", "kind", "address", "size", "requested", "stream", "pool", "device_free")


def run_program(name, folder, late):
    import torch

    import programs
    import vramscope

    function, _ = programs.PROGRAMS[name]
    torch.cuda.memory._record_memory_history(max_entries=2_000_000, context=None)
    path = os.path.join(folder, f"{name}.vram")
    if late:
        programs.gpt_training(3)
        torch.cuda.synchronize()
    with vramscope.record(path) as session:
        function()
        torch.cuda.synchronize()
        # Otherwise the collector may free tensors after the snapshot, which only the hook sees.
        gc.collect()
        gc.disable()
        snapshot = torch.cuda.memory._snapshot()
        stats = {device: torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())}
        status = session.status
    if status != "live":
        sys.exit(f"the hook is not live: {status}")
    with open(os.path.join(folder, f"{name}.pickle"), "wb") as file:
        pickle.dump(snapshot, file)
    with open(os.path.join(folder, f"{name}.json"), "w") as file:
        json.dump(stats, file)


def events(path):
    """Returns the events of a CSV export that change memory, as tuples."""
    with open(path, newline="") as file:
        rows = csv.DictReader(file)
        return [
            tuple(row[field] for field in FIELDS)
            for row in rows
            if row["kind"] not in ("mark", "annotation", "memory_sample", "relabel")
        ]


def compare(vramscope, folder, name):
    """Returns a line about a program; raises AssertionError for a difference."""

    def call(*arguments, status=0):
        done = subprocess.run([vramscope, *arguments], capture_output=True, text=True, cwd=folder)
        assert done.returncode == status, f"{arguments}: {done.returncode} {done.stderr[-400:]} {done.stdout[-400:]}"
        return done.stdout

    call("export", f"{name}.pickle", "--to", "csv", "-o", f"{name}.torch.csv")
    call("export", f"{name}.vram", "--to", "csv", "-o", f"{name}.hook.csv")
    expected = events(os.path.join(folder, f"{name}.torch.csv"))
    found = events(os.path.join(folder, f"{name}.hook.csv"))
    assert found, "the hook recorded no events"
    # A late start has only the last events.
    start = len(expected) - len(found)
    assert start >= 0, f"the hook has {len(found)} events, PyTorch {len(expected)}"
    for number, (a, b) in enumerate(zip(expected[start:], found)):
        assert a == b, f"event {number + 1} of {len(found)}: PyTorch has {a}, the hook {b}"
    infos = [json.loads(call("info", f"{name}.{kind}", "--json")) for kind in ("pickle", "vram")]
    keys = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "segments", "blocks")
    for a, b in zip(*(info["devices"] for info in infos)):
        for key in keys:
            assert a[key] == b[key], f"{key} at the end: PyTorch {a[key]}, hook {b[key]}"
    with open(os.path.join(folder, f"{name}.json")) as file:
        stats = json.load(file)
    device = infos[1]["devices"][0]
    for key in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        expected_bytes = stats["0"][f"{key}.all.current"]
        assert device[key] == expected_bytes, f"{key}: memory_stats {expected_bytes}, hook {device[key]}"
    if start == 0:
        for key, peak in (("allocated_bytes", "peak_allocated_bytes"), ("reserved_bytes", "peak_reserved_bytes")):
            expected_bytes = stats["0"][f"{key}.all.peak"]
            assert device[peak] == expected_bytes, f"{peak}: memory_stats {expected_bytes}, hook {device[peak]}"
    verified = json.loads(call("verify", f"{name}.vram", "--json"))["devices"][0]
    assert verified["divergence"] is None, f"verify: {verified}"
    return f"{len(found)} events of {len(expected)}, {verified['matched']} of {verified['events']} verified"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("vramscope")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", default="hook-out")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_program(options.names[0], options.out, options.late)
        return
    import programs

    os.makedirs(options.out, exist_ok=True)
    names = options.names or list(programs.PROGRAMS)
    vramscope = os.path.abspath(options.vramscope)

    def one(name):
        environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": programs.PROGRAMS[name][1]}
        command = [sys.executable, __file__, vramscope, name, "--run", "--out", options.out]
        command += ["--late"] if options.late else []
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
            assert done.returncode == 0, done.stderr[-1500:]
            return "PASS", name, compare(vramscope, options.out, name)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return "FAIL", name, str(error)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        report(pool.map(one, names))


if __name__ == "__main__":
    main()
