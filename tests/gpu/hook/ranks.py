#!/usr/bin/env python3
"""Compares what vramscope records of the ranks of a job with PyTorch's own history of each.

    ranks.py VRAMSCOPE [--ranks N] [--out FOLDER] [--broker NATS_SERVER] [NAME...]

Each program trains a model on several ranks under `vramscope run torchrun`, which makes one
recording. With --broker, the ranks push to this NATS server instead, and `vramscope serve --from`
makes the recording. Each rank's part of it must have the events of that rank's PyTorch, in order,
its end state and its counters, and `vramscope verify` must match every decision. With one GPU for
each rank they communicate through NCCL; with fewer GPUs the ranks share them and use gloo.
"""

import argparse
import contextlib
import gc
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time

from hook import FIELDS, events
from results import report

STEPS = 10
#: Counters that are compared with `memory_stats`: names in both.
COUNTERS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "active_bytes": "active_bytes.all.current",
    "requested_bytes": "requested_bytes.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
}


def data_parallel(device):
    import programs
    import torch

    net = torch.nn.parallel.DistributedDataParallel(programs.Gpt().to(device), bucket_cap_mb=2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(STEPS):
        programs.train_step(net, optimizer, programs.tokens(4, 64 + 16 * (step % 3)))


def accumulation_without_synchronization(device):
    import programs
    import torch

    net = torch.nn.parallel.DistributedDataParallel(programs.Gpt(layers=2).to(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    for step in range(STEPS):
        with net.no_sync() if step % 2 else contextlib.nullcontext():
            net(programs.tokens(4, 64))[0].float().mean().backward()
        if step % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()


PROGRAMS = {function.__name__: function for function in (data_parallel, accumulation_without_synchronization)}


def run_rank(name, folder):
    import torch
    import vramscope
    from torch import distributed

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    number = rank % torch.cuda.device_count()
    # The session that `vramscope run` has started.
    with vramscope.watch() as session:
        # Before a device is used, so that it has the hook's self-test, too.
        torch.cuda.memory._record_memory_history(max_entries=2_000_000, context=None)
        torch.cuda.set_device(number)
        distributed.init_process_group("nccl" if torch.cuda.device_count() >= size else "gloo")
        torch.manual_seed(rank)
        PROGRAMS[name](torch.device("cuda", number))
        distributed.barrier()
        torch.cuda.synchronize()
        # Otherwise the collector may free tensors after the snapshot, which only the hook sees.
        gc.collect()
        gc.disable()
        snapshot, stats = torch.cuda.memory._snapshot(), torch.cuda.memory_stats(number)
        status = session.status
    if status != "live":
        sys.exit(f"the hook is not live: {status}")
    with open(os.path.join(folder, f"{name}.rank{rank}.pickle"), "wb") as file:
        pickle.dump(snapshot, file)
    with open(os.path.join(folder, f"{name}.rank{rank}.json"), "w") as file:
        json.dump({"device": number, "backend": distributed.get_backend(), "stats": stats}, file)
    distributed.destroy_process_group()


def compare(vramscope, folder, name, ranks):
    """Returns a line about a program; raises AssertionError for a difference."""

    def call(*arguments):
        done = subprocess.run([vramscope, *arguments], capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, f"{arguments}: {done.returncode} {done.stderr[-400:]} {done.stdout[-400:]}"
        return done.stdout

    def rows(path, device):
        """Returns the events of a file's device, without the device."""
        call("export", path, "--to", "csv", "-o", f"{path}.csv")
        found = events(os.path.join(folder, f"{path}.csv"))
        return [row[1:] for row in found if row[FIELDS.index("device")] == str(device)]

    infos = json.loads(call("info", f"{name}.vram", "--json"))["devices"]
    verified = json.loads(call("verify", f"{name}.vram", "--json"))["devices"]
    counts = []
    for rank in range(ranks):
        with open(os.path.join(folder, f"{name}.rank{rank}.json")) as file:
            rank_result = json.load(file)
        [info] = [info for info in infos if info["rank"] == rank and info["events"]]
        expected, found = rows(f"{name}.rank{rank}.pickle", rank_result["device"]), rows(f"{name}.vram", info["device"])
        for number, (a, b) in enumerate(zip(expected, found)):
            assert a == b, f"rank {rank}, event {number + 1} of {len(found)}: PyTorch has {a}, the hook {b}"
        assert len(expected) == len(found), f"rank {rank}: PyTorch has {len(expected)} events, the hook {len(found)}"
        for key, counter in COUNTERS.items():
            wanted = rank_result["stats"][counter]
            assert info[key] == wanted, f"rank {rank}, {key}: memory_stats {wanted}, hook {info[key]}"
        [replayed] = [device for device in verified if device["device"] == info["device"]]
        assert replayed["divergence"] is None, f"rank {rank}, verify: {replayed}"
        counts.append(len(found))
    return f"{counts} events of the ranks, on {rank_result['backend']}"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def broker(nats_server, vramscope, folder, name, ranks):
    """Runs a broker and a server that records the run; yields the address to push to."""
    port, record = free_port(), os.path.join(folder, f"{name}.vram")
    store = os.path.join(folder, f"{name}.nats")
    log_path = os.path.join(folder, f"{name}.serve.log")
    with open(log_path, "w") as log, contextlib.ExitStack() as started:

        def start(*command, **options):
            process = started.enter_context(subprocess.Popen(command, **options))
            started.callback(process.kill)
            return process

        start(nats_server, "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", store, stderr=subprocess.DEVNULL)
        wait_for(lambda: not socket.socket().connect_ex(("127.0.0.1", port)), "the broker")
        address = f"nats://127.0.0.1:{port}/{name}"
        serve = start(
            *(vramscope, "serve", "--from", address, "--no-open", "--listen", "127.0.0.1:0"),
            *("--record", record),
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        yield f"{address}?push=all"
        ended = lambda: open(log_path).read().count(" has ended")  # noqa: E731
        wait_for(lambda: ended() >= ranks, "the ends of all ranks at the server")
        serve.send_signal(signal.SIGINT)
        assert serve.wait(60) == 0, open(log_path).read()[-1000:]


def wait_for(condition, what):
    """Waits until a condition holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("vramscope")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out", default="ranks-out")
    parser.add_argument("--broker", help="path of nats-server")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        run_rank(options.names[0], options.out)
        return
    os.makedirs(options.out, exist_ok=True)
    vramscope = os.path.abspath(options.vramscope)

    def run_and_compare(name):
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={options.ranks}"]
        command += [f"--master-port={free_port()}", __file__, vramscope, name]
        command += ["--as-rank", "--out", options.out]

        def run(command, **variables):
            environment = os.environ | variables
            done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
            assert done.returncode == 0, (done.stdout + done.stderr)[-2500:]

        try:
            if options.broker:
                with broker(options.broker, vramscope, options.out, name, options.ranks) as address:
                    run(command, VRAMSCOPE_PUSH=address)
            else:
                record = ["--record", os.path.join(options.out, f"{name}.vram")]
                run([vramscope, "run", "--no-open", "--listen", "127.0.0.1:0", *record, *command])
            return "PASS", name, compare(vramscope, options.out, name, options.ranks)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return "FAIL", name, str(error)

    report(map(run_and_compare, options.names or list(PROGRAMS)))


if __name__ == "__main__":
    main()
