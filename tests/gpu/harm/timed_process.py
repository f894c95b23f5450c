#!/usr/bin/env python3
"""Runs training steps on request, and prints how long they took, for step_time.py.

    timed_process.py LAYERS WIDTH [--package PACKAGE --record FILE --stacks none|python]

With a package it watches itself, else vramscope is not imported. Prints a line of JSON about the
GPU once it has warmed up. For each line with a number it runs as many steps, and prints the mean
step in ms. At the end of its input it prints the status of its recording.
"""

import argparse
import faulthandler
import gc
import json
import os
import sys
import time

#: Steps before the first request.
WARM_UP = 20
#: Longest time in which the recording begins, in seconds.
LIMIT = 60


def take_stdout():
    """Returns a file for standard output, where others then print to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("layers", type=int)
    parser.add_argument("width", type=int)
    parser.add_argument("--package")
    parser.add_argument("--record")
    parser.add_argument("--stacks", choices=["none", "python"])
    options = parser.parse_args()
    faulthandler.enable()
    replies = take_stdout()
    harm = os.path.dirname(os.path.abspath(__file__))
    sys.path.append(os.path.join(os.path.dirname(harm), "hook"))

    import torch

    import programs

    session = None
    if options.package:
        sys.path.insert(0, options.package)
        import vramscope

        stacks = None if options.stacks == "none" else options.stacks
        session = vramscope.watch(listen="127.0.0.1:0", record=options.record, stacks=stacks)
    torch.manual_seed(1)
    net = programs.Gpt(layers=options.layers, width=options.width, heads=8).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=False, fused=False)
    batch = programs.tokens(2, 128)

    def reply(value):
        print(json.dumps(value), file=replies, flush=True)

    def run_steps(count):
        """Returns the mean step, in ms."""
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            programs.train_step(net, optimizer, batch)
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - begin) / count

    run_steps(WARM_UP)
    deadline = time.monotonic() + LIMIT
    while session and session.status == "waiting" and time.monotonic() < deadline:
        run_steps(1)
    check_status(session)
    # A collection would fall into one step of many.
    gc.collect()
    gc.freeze()
    gc.disable()
    reply({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__})
    for line in sys.stdin:
        reply(run_steps(int(line)))
    check_status(session)
    if session is None and "vramscope" in sys.modules:
        sys.exit("vramscope was imported in a process that is not to be watched")
    reply(session.status if session else None)
    if session:
        session.stop()


def check_status(session):
    if session and session.status != "live":
        sys.exit(f"the recording is not live: {session.status}")


if __name__ == "__main__":
    main()
