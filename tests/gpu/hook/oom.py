#!/usr/bin/env python3
"""Runs programs that run out of memory for different reasons, and checks what `on_oom` writes.

    oom.py VRAMSCOPE [NAME...]

Each program runs in a process of its own. Its comments mark the line that fills the memory (FILLS)
and the line whose request fails (FAILS). The recording must end with the failure, and the sentence
must name both lines.
"""

import argparse
import concurrent.futures
import csv
import inspect
import itertools
import os
import re
import subprocess
import sys
import tempfile

from results import report

CAP_GIB = 2
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


@program
def batch_too_large():
    import torch

    net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(64))).cuda()
    x = torch.randn(16384, 1024, device="cuda")
    for layer in net:
        x = torch.relu(layer(x))  # FILLS FAILS


@program
def outputs_kept_with_their_graph():
    import torch

    net = torch.nn.Linear(2048, 2048).cuda()
    outputs = []
    while True:
        x = torch.randn(1024, 2048, device="cuda")  # FAILS
        outputs.append(net(x).sigmoid().square())  # FILLS FAILS


@program
def growing_list():
    import torch

    kept = []
    while True:
        kept.append(torch.zeros(1 << 22, device="cuda"))  # FILLS FAILS


@program
def request_larger_than_the_cap():
    import torch

    weights = torch.zeros(1 << 26, device="cuda")  # FILLS
    weights.repeat(64, 1)  # FAILS


@program
def fragmentation():
    import torch

    # Five blocks share a segment of 20 MiB, and one of them stays.
    blocks = [torch.empty(4 << 20, dtype=torch.uint8, device="cuda") for _ in range(480)]  # FILLS
    blocks = blocks[::5]
    torch.empty(600 << 20, dtype=torch.uint8, device="cuda")  # FAILS


@program
def optimizer_state():
    import torch

    parameters = [torch.nn.Parameter(torch.zeros(1 << 25, device="cuda")) for _ in range(6)]  # FILLS
    optimizer = torch.optim.Adam(parameters, foreach=False)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)  # FILLS
    optimizer.step()  # FAILS


@program
def gradients_in_the_backward_pass():
    import torch

    weights = [torch.zeros(1 << 25, device="cuda", requires_grad=True) for _ in range(10)]  # FILLS
    loss = sum((weight[:1] * 2).sum() for weight in weights)  # FAILS
    loss.backward()


@program
def key_value_cache():
    import torch

    keys = torch.zeros(8, 16, 1, 64, device="cuda", dtype=torch.float16)
    while True:
        step = torch.zeros(8, 16, 2048, 64, device="cuda", dtype=torch.float16)
        keys = torch.cat([keys, step], 2)  # FILLS FAILS


@program
def memory_of_another_stream():
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        used = [torch.zeros(1 << 20, device="cuda") for _ in range(480)]  # FILLS
        used = used[::5]
    torch.zeros(150 << 20, device="cuda")  # FAILS


@program
def private_pool():
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = [torch.zeros(1 << 25, device="cuda") for _ in range(14)]  # FILLS
    del kept[1:]
    torch.zeros(1 << 28, device="cuda")  # FAILS


@program
def inference_with_graph():
    import torch

    net = torch.nn.Sequential(*(torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(200))).cuda()
    x = torch.randn(8, 16, 256, 256, device="cuda")
    for layer in net:
        x = layer(x)  # FILLS FAILS


@program
def device_full():
    import torch

    torch.cuda.set_per_process_memory_fraction(1.0)
    free, _ = torch.cuda.mem_get_info()
    weights = torch.empty(free - (3 << 30), dtype=torch.uint8, device="cuda")  # FILLS
    torch.empty(4 << 30, dtype=torch.uint8, device="cuda"), weights  # FAILS


@program
def first_request_too_large():
    import torch

    torch.empty(1 << 42, dtype=torch.uint8, device="cuda")  # FAILS


def lines_with(function, word):
    """Returns the numbers of a function's lines with a word in their comment."""
    source, first = inspect.getsourcelines(function)
    return [first + index for index, line in enumerate(source) if re.search(rf"#.*\b{word}\b", line)]


def run_program(name, path):
    import torch

    import vramscope

    vramscope.on_oom(path)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(CAP_GIB * 2**30 / total)
    try:
        PROGRAMS[name]()
    except torch.OutOfMemoryError:
        return
    sys.exit("the program did not run out of memory")


def check(vramscope, folder, name):
    """Returns the sentence; raises AssertionError for a difference."""
    path = os.path.join(folder, f"{name}.vram")
    command = [sys.executable, os.path.abspath(__file__), vramscope, name, "--run", path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-1500:]
    sentences = [line for line in done.stderr.splitlines() if line.startswith("vramscope: ")]
    assert len(sentences) == 1, done.stderr
    table = os.path.join(folder, f"{name}.csv")
    subprocess.run([vramscope, "export", path, "--to", "csv", "-o", table], check=True, capture_output=True)
    with open(table, newline="") as file:
        *_, last = csv.DictReader(file)
    assert last["kind"] == "oom", f"the last event is {last['kind']}"
    filled, failed = sentences[0].partition("At ")[::2]
    for word, text in ("FILLS", filled), ("FAILS", failed):
        if not lines_with(PROGRAMS[name], word):
            continue  # Nothing was allocated.
        wanted = [f"{os.path.basename(__file__)}:{line}" for line in lines_with(PROGRAMS[name], word)]
        assert any(line in text for line in wanted), f"{word} is not one of {wanted}: {sentences[0]}"
    return sentences[0]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("vramscope")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run_program(options.names[0], options.run)
        return
    vramscope = os.path.abspath(options.vramscope)
    names = options.names or list(PROGRAMS)
    # The program that fills the device runs alone.
    crowd = [name for name in names if name != "device_full"]
    alone = [name for name in names if name == "device_full"]

    def one(name):
        try:
            return "PASS", name, check(vramscope, folder, name)
        except (AssertionError, subprocess.SubprocessError) as error:
            return "FAIL", name, str(error)

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(6) as pool:
        report(itertools.chain(pool.map(one, crowd), map(one, alone)))


if __name__ == "__main__":
    main()
