#!/usr/bin/env python3
"""Attaches to a training job again and again, and compares its losses with an undisturbed run.

    attach.py VRAMSCOPE PACKAGE [--cycles N] [--kills N]

PACKAGE is the folder that contains the Python package. The job (`--job`) does not import it. Prints
how long an attach took until memory could be read, and whether each recording is verified.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

STEPS = 9000


def job():
    import torch

    import programs

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    net = programs.Gpt(layers=2).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(STEPS):
        loss = programs.train_step(net, optimizer, programs.tokens(2 + step % 3, 32 + 8 * (step % 5), step))
        print(f"{step} {loss!r}", flush=True)


def start_job(folder, name):
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONPATH": os.path.dirname(__file__)}
    output = open(os.path.join(folder, name), "w")
    process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--job"], stdout=output, env=environment)
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("vramscope", nargs="?")
    parser.add_argument("package", nargs="?")
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--job", action="store_true")
    options = parser.parse_args()
    if options.job:
        job()
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
        if cycle % 5 == 0:
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
    for process in (expected, watched):
        process.wait(timeout=200)
    same = lines(folder, "expected") == lines(folder, "watched")
    print(f"attach to memory: median {sorted(delays)[len(delays) // 2]:.2f} s, most {max(delays):.2f} s")
    print(f"losses of {len(lines(folder, 'watched'))} steps equal: {same}, exit codes {expected.returncode}, "
          f"{watched.returncode}")
    sys.exit(0 if same and watched.returncode == 0 else 1)


if __name__ == "__main__":
    main()
