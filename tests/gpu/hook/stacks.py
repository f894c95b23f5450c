#!/usr/bin/env python3
"""Compares scopes, regions of torch.compile and C++ call stacks with PyTorch's own recording.

    stacks.py VRAMSCOPE    (the `vramscope` command)

Both record one program at once. Prints a line for each comparison; the exit status is 1 if scopes
or regions differ. C++ names are compared without their arguments, because demanglers write those
differently; the share of PyTorch's frames that the recording has is printed.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

import vramscope


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(width, 4 * width)
        self.second = nn.Linear(4 * width, width)

    def forward(self, x):
        x = self.first(x)
        with vramscope.scope("inner"):
            x = torch.relu(x)
        return self.second(x)


def base_name(function):
    """Returns a C++ function's name without template arguments and arguments."""
    name, depth = "", 0
    for character in function.split(" [clone")[0].replace("(anonymous namespace)", "anonymous"):
        if character == "(" and depth == 0:
            break
        depth += (character == "<") - (character == ">")
        if depth == 0 and character != ">":
            name += character
    return name


def run(net, compiled, steps):
    for _ in range(steps):
        x = torch.randn(64, 256, device="cuda")
        with vramscope.scope("plain"):
            loss = net(x).sum()
        with vramscope.scope("backward pass"):
            loss.backward()
        with vramscope.scope("compiled", category="activation"):
            loss = compiled(x).sum()
        loss.backward()
        torch.cuda.synchronize()
        time.sleep(0.1)


def record(folder):
    """Records the program; returns PyTorch's entries for allocations."""
    net, other = Net(256).cuda(), Net(256).cuda()
    compiled = torch.compile(lambda x: torch.softmax(other.second(torch.relu(other.first(x))), 1))
    with vramscope.record(os.path.join(folder, "run.vram"), stacks="all") as session:
        while session.status == "waiting":
            time.sleep(0.01)
        print("status:", session.status)
        session.annotate(net)
        run(net, compiled, 3)
        torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="all", compile_context=True)
        run(net, compiled, 5)
        begin = time.perf_counter()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        print(f"PyTorch's snapshot took {time.perf_counter() - begin:.1f} s")
        torch.cuda.memory._record_memory_history(enabled=None)
    return [entry for entry in trace if entry["action"] == "alloc"]


def read_rows(command, folder):
    subprocess.run([command, "export", "run.vram", "--to", "csv", "-o", "run.csv"], cwd=folder, check=True)
    with open(os.path.join(folder, "run.csv"), newline="") as file:
        return [row for row in csv.DictReader(file) if row["kind"] == "alloc" and row["device"] == "0"]


def pairs_of(entries, rows):
    """Returns each entry of PyTorch with the row of the recording."""
    key = [(hex(entry["addr"]), str(entry["size"])) for entry in entries]
    found = [(row["address"], row["requested"]) for row in rows]
    for start in range(len(found) - len(key), -1, -1):
        if found[start : start + len(key)] == key:
            return list(zip(entries, rows[start:]))
    sys.exit("the recording lacks PyTorch's allocations")


def main():
    os.environ.setdefault("TORCH_SYMBOLIZE_MODE", "fast")
    command = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        entries = record(folder)
        pairs = pairs_of(entries, read_rows(command, folder))
    print(f"{len(pairs)} allocations")

    scopes = {}
    for _, row in pairs:
        scopes[row["scope"]] = scopes.get(row["scope"], 0) + 1
    print("scopes:", json.dumps(scopes, indent=1))
    expected = {"plain/Net/first", "plain/Net/inner", "plain/Net/second", "compiled", "backward/plain/Net/first"}
    missing = expected - scopes.keys()

    contexts, differing = {}, 0
    for entry, row in pairs:
        context = entry.get("compile_context", "")
        context = "" if context == "N/A" else context
        key = f"{context or 'none'} -> {row['compile_context'] or 'none'}"
        contexts[key] = contexts.get(key, 0) + 1
        differing += bool(context) and context != row["compile_context"]
    print("regions of PyTorch -> of the recording:", json.dumps(contexts, indent=1))

    total = present = without = 0
    for entry, row in pairs:
        lines = [line for line in row["stack"].splitlines() if ".py:" not in line]
        ours = {base_name(line) for line in lines}
        without += not ours
        theirs = []
        for frame in entry["frames"]:
            if frame["filename"].endswith(".py") or "PyEval" in frame["name"]:
                break
            theirs.append(base_name(frame["name"]))
        total += len(theirs)
        present += sum(name in ours for name in theirs)
    print(f"C++ frames: {present} of PyTorch's {total} are in the recording; {without} allocations have none")
    longest = max(pairs, key=lambda pair: pair[1]["stack"].count("\n"))
    print(longest[1]["stack"])
    if missing or differing:
        sys.exit(f"missing scopes: {sorted(missing)}; differing regions: {differing}")


if __name__ == "__main__":
    main()
