#!/usr/bin/env python3
"""Times a training step while its recording is pushed to a server, to a broker, or not at all.

    push_cost.py VRAMSCOPE NATS_SERVER [--rounds N] [--steps N] [--out FOLDER]

Equal processes differ by more than pushing costs, so each variant runs in several processes, in
rounds that each begin with another variant. Of each process the median step counts. Prints, for
each variant, the median of those and their range, in ms.
"""

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time

from ranks import broker, free_port, wait_for

VARIANTS = ("off", "recorded", "socket", "broker")


def run_steps(variant, steps):
    """Trains and prints the median step."""
    import programs
    import torch
    import vramscope

    torch.manual_seed(1)
    watching = contextlib.nullcontext() if variant == "off" else vramscope.watch()
    with watching:
        net = programs.Gpt().to("cuda")
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        tokens, times = programs.tokens(4, 128), []
        for _ in range(steps):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            programs.train_step(net, optimizer, tokens)
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin))
    print(json.dumps(statistics.median(times[steps // 4 :])))


@contextlib.contextmanager
def server(vramscope, folder, name):
    """Runs a server that processes push to; yields its address."""
    port = free_port()
    command = [vramscope, "serve", "--no-open", "--listen", f"127.0.0.1:{port}"]
    with open(os.path.join(folder, f"{name}.log"), "w") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
        try:
            wait_for(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), "the server")
            yield f"ws://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("vramscope")
    parser.add_argument("nats_server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", default="push-cost-out")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        run_steps(options.variant, options.steps)
        return
    os.makedirs(options.out, exist_ok=True)
    vramscope = os.path.abspath(options.vramscope)
    medians = {variant: [] for variant in VARIANTS}
    for number in range(options.rounds):
        for variant in VARIANTS[number % len(VARIANTS) :] + VARIANTS[: number % len(VARIANTS)]:
            name = f"{variant}{number}"
            environment = dict(os.environ)
            if variant == "recorded":
                environment["VRAMSCOPE_RECORD"] = os.path.join(options.out, f"{name}.vram")
            running = contextlib.nullcontext()
            if variant == "socket":
                running = server(vramscope, options.out, name)
            elif variant == "broker":
                running = broker(options.nats_server, vramscope, options.out, name, 1)
            with running as address:
                if address:
                    environment["VRAMSCOPE_PUSH"] = address
                command = [sys.executable, __file__, vramscope, options.nats_server]
                command += ["--variant", variant, "--steps", str(options.steps)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
                assert done.returncode == 0, (done.stdout + done.stderr)[-2500:]
            medians[variant].append(json.loads(done.stdout.splitlines()[-1]))
    off = statistics.median(medians["off"])
    for variant, values in medians.items():
        middle = statistics.median(values)
        change = 100 * (middle / off - 1)
        print(f"{variant:9} {middle:7.2f} ms ({min(values):.2f} to {max(values):.2f}), {change:+.1f}%")


if __name__ == "__main__":
    main()
