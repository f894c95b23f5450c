#!/usr/bin/env python3
"""Attaches to a training job again and again, and compares its losses with an undisturbed run.

    attach.py VRAMSCOPE PACKAGE [--cycles N] [--kills N] [--snapshots N]

PACKAGE is the folder that contains the Python package. The job (`--job`) does not import it. Prints
how long an attach took until memory could be read, and whether each recording is verified. Last,
the job takes snapshots while it is recorded, and the recording's state at each of them must have
the snapshot's segments and blocks.
"""

import argparse
import csv
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

#: The job ends at the first step after this file exists.
STOP = "stop"
#: The job takes snapshots while this file exists.
SNAPSHOTS = "snapshots"
#: Steps between two snapshots of the job.
SNAPSHOT_STEPS = 3


def job(folder):
    import torch

    import programs

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    net = programs.Gpt(layers=2).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    step = taken = 0
    while not os.path.exists(os.path.join(folder, STOP)):
        loss = programs.train_step(net, optimizer, programs.tokens(2 + step % 3, 32 + 8 * (step % 5), step))
        print(f"{step} {loss!r}", flush=True)
        step += 1
        if step % SNAPSHOT_STEPS == 0 and os.path.exists(os.path.join(folder, SNAPSHOTS)):
            segments = torch.cuda.memory._snapshot()["segments"]
            with open(os.path.join(folder, f"snapshot{taken}.pickle"), "wb") as file:
                pickle.dump(segments, file)
            taken += 1


def start_job(folder, name):
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONPATH": os.path.dirname(__file__)}
    output = open(os.path.join(folder, name), "w")
    # The undisturbed job takes no snapshots, and ends when it is terminated.
    own = os.path.join(folder, name + "-files")
    os.makedirs(own)
    command = [sys.executable, os.path.abspath(__file__), "--job", own]
    process = subprocess.Popen(command, stdout=output, env=environment)
    return process


def lines(folder, name):
    with open(os.path.join(folder, name)) as file:
        return file.read().splitlines()


def seconds_to_memory(address):
    """Returns when the server's metrics first contain a device's memory, as a time."""
    base, _, token = address.partition("?token=")
    request = urllib.request.Request(f"{base}metrics", headers={"Authorization": f"Bearer {token}"})
    deadline = time.time() + 10
    while time.time() < deadline:
        try:
            text = urllib.request.urlopen(request, timeout=1).read().decode()
            if any("allocated_bytes" in line and not line.startswith("#") for line in text.splitlines()):
                return time.time()
        except OSError:
            pass
        time.sleep(0.02)
    raise SystemExit("no memory within 10 s")


def blocks_of(segments):
    """Returns the segments and the active blocks of a snapshot."""
    found = {segment["address"]: segment["total_size"] for segment in segments}
    blocks = {}
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                blocks[block["address"]] = (block["size"], block["requested_size"], block["state"])
    return found, blocks


def states_at_snapshots(vramscope, folder, path):
    """Returns the segments and blocks of a recording at each of its snapshots, in order: the state
    at its end, and before each event from there back."""
    table, end = os.path.join(folder, "events.csv"), os.path.join(folder, "end.pickle")
    for target, output in ("csv", table), ("memory-viz", end):
        subprocess.run([vramscope, "export", path, "--to", target, "-o", output], check=True, capture_output=True)
    with open(end, "rb") as file:
        segments, blocks = blocks_of(pickle.load(file)["segments"])
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    states = []
    for row in reversed(rows):
        kind, address = row["kind"], int(row["address"] or "0", 0)
        if row["name"] == "snapshot":
            states.append((dict(segments), dict(blocks)))
        elif kind == "alloc":
            del blocks[address]
        elif kind == "free_requested":
            blocks[address] = (*blocks[address][:2], "active_allocated")
        elif kind == "free_completed":
            blocks[address] = (int(row["size"]), int(row["requested"]), "active_pending_free")
        elif kind == "segment_alloc":
            del segments[address]
        elif kind == "segment_free":
            segments[address] = int(row["size"])
    return states[::-1]


def compare_snapshots(options, attach, job_folder):
    """Records the job while it takes snapshots. Returns how many equal the recording's state."""
    path = os.path.join(job_folder, "snapshots.vram")
    process = subprocess.Popen([*attach, "--record", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seconds_to_memory(process.stdout.readline().removeprefix("listening: ").strip())
    switch = os.path.join(job_folder, SNAPSHOTS)
    open(switch, "w").close()
    last = os.path.join(job_folder, f"snapshot{options.snapshots}.pickle")
    deadline = time.time() + 60
    while not os.path.exists(last) and time.time() < deadline:
        time.sleep(0.05)
    os.remove(switch)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    states = states_at_snapshots(options.vramscope, job_folder, path)
    equal = 0
    # The first snapshots of the recording are those with which it began.
    taken = sum(name.startswith("snapshot") and name.endswith(".pickle") for name in os.listdir(job_folder))
    for number, state in zip(range(options.snapshots), states[len(states) - taken:]):
        with open(os.path.join(job_folder, f"snapshot{number}.pickle"), "rb") as file:
            equal += blocks_of(pickle.load(file)) == state
    return equal


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("vramscope", nargs="?")
    parser.add_argument("package", nargs="?")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--snapshots", type=int, default=20)
    parser.add_argument("--job", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(options.job)
        return
    folder = tempfile.mkdtemp()
    expected = start_job(folder, "expected")
    watched = start_job(folder, "watched")
    while len(lines(folder, "watched")) < 20:
        time.sleep(0.2)
    attach = [options.vramscope, "attach", str(watched.pid), "--package", options.package, "--no-open",
              "--listen", "127.0.0.1:0"]
    delays = []
    for cycle in range(options.cycles):
        path = os.path.join(folder, f"{cycle}.vram")
        begin = time.time()
        command = [*attach, "--record", path]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        address = process.stdout.readline().removeprefix("listening: ").strip()
        if not address:
            raise SystemExit(process.stderr.read())
        delays.append(seconds_to_memory(address) - begin)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        if process.returncode != 0:
            raise SystemExit(f"cycle {cycle}: {process.returncode} {errors}")
        if cycle % 20 == 0:
            done = subprocess.run([options.vramscope, "verify", path, "--json"], capture_output=True, text=True)
            device = json.loads(done.stdout)["devices"][0]
            print(f"cycle {cycle}: {delays[-1]:.2f} s to memory, {device['matched']} of {device['events']} verified, "
                  f"divergence {device['divergence']}", flush=True)
    draw = random.Random(1)
    for _ in range(options.kills):
        process = subprocess.Popen(attach, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.random() * 0.6)
        process.kill()
        process.wait()
        if watched.poll() is not None:
            raise SystemExit(f"the job ended: {watched.returncode}")
    equal = compare_snapshots(options, attach, os.path.join(folder, "watched-files")) if options.snapshots else 0
    open(os.path.join(folder, "watched-files", STOP), "w").close()
    watched.wait(timeout=30)
    done = lines(folder, "watched")
    deadline = time.time() + 60
    while len(lines(folder, "expected")) < len(done) and time.time() < deadline:
        time.sleep(0.2)
    expected.kill()
    expected.wait()
    same = lines(folder, "expected")[: len(done)] == done
    print(f"attach to memory: median {sorted(delays)[len(delays) // 2]:.2f} s, most {max(delays):.2f} s")
    print(f"state equals {equal} of {options.snapshots} snapshots of the job")
    print(f"losses of {len(done)} steps equal: {same}, exit code {watched.returncode}")
    sys.exit(0 if same and equal == options.snapshots and watched.returncode == 0 else 1)


if __name__ == "__main__":
    main()
