#!/usr/bin/env python3
"""Measures what following PyTorch's allocator costs, in one process, in turns.

    cost.py [--vramscope VRAMSCOPE] [--turns N] [--steps N] [--layers N]

Modes: `idle` (the tracker is attached and returns at once), `events`, `marks` (with marks, as
`watch(stacks=None)` does), `stacks` (with Python stacks), `all-stacks` (with Python and C++
stacks), `labels` (with Python stacks, categories and marks, as `watch()` does), `torch` (PyTorch's
own recording without stacks) and `torch-stacks` (with Python stacks).
A turn has steps of each mode, in an order that rotates. Prints the median of the ratios to idle, in
percent, with a 95 % interval by resampling turns. A file is written, and a viewer is connected.

Afterwards allocates and frees in a C++ loop, in nanoseconds for both: nothing attached (measured
first), and each mode.
"""

import argparse
import gc
import os
import random
import statistics
import subprocess
import tempfile
import time

import torch
from torch.utils.cpp_extension import load_inline

import programs
import vramscope
from vramscope import _spans

#: The call stacks of the modes that follow the allocator.
STACKS = {"events": None, "marks": None, "stacks": "python", "all-stacks": "all", "labels": "python"}
MODES = ["idle", *STACKS, "torch", "torch-stacks"]
LOOP = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <chrono>
#include <algorithm>
#include <vector>
double pair_ns(int64_t size, int64_t rounds) {
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  std::vector<double> times;
  for (int turn = 0; turn < 9; ++turn) {
    auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < rounds; ++i) allocator->raw_delete(allocator->raw_alloc(size));
    auto end = std::chrono::steady_clock::now();
    times.push_back(std::chrono::duration<double, std::nano>(end - begin).count() / rounds);
  }
  std::sort(times.begin(), times.end());
  return times[4];
}
"""


def set_mode(session, mode, net, optimizer):
    history = torch.cuda.memory._record_memory_history
    if mode == "torch":
        history(max_entries=1_000_000, context=None)
    elif mode == "torch-stacks":
        history(max_entries=1_000_000, stacks="python")
    else:
        history(enabled=None)
    following = session._following
    following.labels.remove()
    _spans.remove()
    if mode in STACKS:
        following.change_stacks(STACKS[mode])
        following.resume()
    else:
        following.pause()
    if mode in ("marks", "labels"):
        following.labels.install()
        _spans.install(torch, session._session)
    if mode == "labels":
        following.annotate(net, optimizer)


def interval(ratios):
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(1000))
    return medians[25], medians[974]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vramscope")
    parser.add_argument("--turns", type=int, default=150)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()
    loop = load_inline("pair", LOOP, functions=["pair_ns"], with_cuda=True)
    torch.empty(1, device="cuda")
    nothing = loop.pair_ns(4096, 20000)

    folder = tempfile.mkdtemp()
    session = vramscope.watch(listen="127.0.0.1:0", record=os.path.join(folder, "a.vram"))
    print("status:", session.status)
    viewer = None
    if options.vramscope:
        command = [options.vramscope, "record", session.url, "-o", os.path.join(folder, "live.vram")]
        viewer = subprocess.Popen(command)
    net = programs.Gpt(layers=options.layers, width=options.width, heads=8).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, foreach=False, fused=False)
    batch = programs.tokens(2, 128)
    for mode in MODES + ["idle"]:
        set_mode(session, mode, net, optimizer)
        for _ in range(10):
            programs.train_step(net, optimizer, batch)
    gc.collect()
    gc.freeze()
    gc.disable()
    times = {mode: [] for mode in MODES}
    for turn in range(options.turns):
        order = MODES[turn % len(MODES):] + MODES[: turn % len(MODES)]
        for mode in order:
            set_mode(session, mode, net, optimizer)
            programs.train_step(net, optimizer, batch)
            steps = []
            for _ in range(options.steps):
                torch.cuda.synchronize()
                begin = time.perf_counter()
                programs.train_step(net, optimizer, batch)
                torch.cuda.synchronize()
                steps.append(1e3 * (time.perf_counter() - begin))
            times[mode].append(min(steps))
    for mode in MODES:
        ratios = [100 * (a / b - 1) for a, b in zip(times[mode], times["idle"])]
        low, high = interval(ratios)
        print(f"{mode:14} step {statistics.median(times[mode]):7.3f} ms  {statistics.median(ratios):+6.2f} % "
              f"[{low:+.2f}, {high:+.2f}]", flush=True)
    pairs = {mode: [] for mode in MODES}
    for turn in range(12):
        for mode in MODES[turn % len(MODES):] + MODES[: turn % len(MODES)]:
            set_mode(session, mode, net, optimizer)
            pairs[mode].append(loop.pair_ns(4096, 3000))
    print(f"pair of 4 KiB, median (least): nothing attached {nothing:.0f} ns", end="")
    for mode in MODES:
        print(f", {mode} {statistics.median(pairs[mode]):.0f} ({min(pairs[mode]):.0f})", end="")
    print()
    set_mode(session, "idle", net, optimizer)
    session.stop()
    if viewer:
        viewer.wait(timeout=20)
    print("file:", os.path.getsize(os.path.join(folder, "a.vram")))
    if options.vramscope:
        subprocess.run([options.vramscope, "info", os.path.join(folder, "a.vram")])


if __name__ == "__main__":
    main()
