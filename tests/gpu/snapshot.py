#!/usr/bin/env python3
"""Makes snapshots of PyTorch's allocator with PyTorch's own counters, to check `vramscope verify`.

    snapshot.py OUT [NAME...]     runs every program below, or those named, each in its own process
    snapshot.py --list

Writes NAME.pickle.zst (.gz if Python has no zstandard), the result of
torch.cuda.memory._snapshot(), and NAME.json: `steps` (bytes after each), `stats`
(torch.cuda.memory_stats()), `summary`, `mem_get_info`, `limit_bytes`, `events` and `device_stats`
of each device, and the `recorded` options. Needs an NVIDIA GPU and PyTorch 2.11; two programs need
two GPUs. Seeded generators make the requests the same in every run; addresses and the timing of
other streams depend on the machine.
"""

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
import time

from snapshot_models import HISTORY, Lacking
from snapshot_models import PROGRAMS as MODELS

MIB = 1 << 20


class Program:
    """Values that a program records while it runs."""

    def __init__(self, torch):
        self.torch = torch
        self.steps = []
        self.limit_bytes = None
        self.ooms = 0
        self.last_oom = None

    def step(self, tag):
        cuda = self.torch.cuda
        self.steps.append(
            {
                "tag": tag,
                "allocated": cuda.memory_allocated(),
                "reserved": cuda.memory_reserved(),
                "max_allocated": cuda.max_memory_allocated(),
                "max_reserved": cuda.max_memory_reserved(),
            }
        )

    def limit(self, limit_bytes):
        """Caps the pool. Keeps the cap that the allocator derives from the fraction."""
        total = self.torch.cuda.mem_get_info()[1]
        fraction = limit_bytes / total
        self.torch.cuda.set_per_process_memory_fraction(fraction)
        self.limit_bytes = int(fraction * total)

    def bytes(self, size):
        return self.torch.empty(size, dtype=self.torch.uint8, device="cuda")

    def try_bytes(self, size):
        try:
            return self.bytes(size)
        except self.torch.OutOfMemoryError as error:
            self.ooms += 1
            self.last_oom = str(error)
            return None


def draw_size(rng):
    """Draws a request size as programs make them: most small, some tens of MiB."""
    kind = rng.random()
    if kind < 0.45:
        return rng.randint(1, 4096)
    if kind < 0.75:
        return rng.randint(4096, MIB)
    if kind < 0.92:
        return rng.randint(MIB, 12 * MIB)
    return rng.randint(12 * MIB, 70 * MIB)


def churn(program, rng, operations, live, cap_live=160, streams=(None,), uses=0.0, tag="churn"):
    """A random live set. The share `uses` of blocks is used on another stream, behind slow work."""
    torch = program.torch
    for n in range(operations):
        if live and (len(live) > cap_live or rng.random() < 0.45):
            del live[rng.randrange(len(live))]
        else:
            stream = rng.choice(streams)
            with torch.cuda.stream(stream):  # None leaves the current one
                block = program.try_bytes(draw_size(rng))
            if block is None:
                program.step(f"oom at {n}")
                for _ in range(len(live) // 2):
                    del live[rng.randrange(len(live))]
                continue
            if rng.random() < uses:
                other = rng.choice([it for it in streams if it is not stream])
                other = torch.cuda.default_stream() if other is None else other
                with torch.cuda.stream(other):
                    torch.cuda._sleep(rng.randint(20_000, 400_000))
                block.record_stream(other)
            live.append(block)
        if n % 500 == 499:
            program.step(f"{tag} {n}")


def streams(program):
    """Four streams; a third of the blocks is used on another stream, so frees complete late."""
    torch, rng, live = program.torch, random.Random(11), []
    all_streams = (None, *(torch.cuda.Stream() for _ in range(3)))
    churn(program, rng, 2500, live, streams=all_streams, uses=0.35)
    torch.cuda.empty_cache()
    program.step("emptied")
    churn(program, rng, 1000, live, streams=all_streams, uses=0.35, tag="again")
    # Blocks used on two streams at once, freed while both are busy.
    for n in range(60):
        block = program.bytes(rng.randint(MIB, 6 * MIB))
        for stream in all_streams[1:3]:
            with torch.cuda.stream(stream):
                torch.cuda._sleep(200_000)
            block.record_stream(stream)
        del block
        live.append(program.bytes(rng.randint(1, 2 * MIB)))
    program.step("two uses")
    live.clear()
    torch.cuda.synchronize()
    program.bytes(MIB)
    program.step("drained")


def two_pools(program):
    """CUDA graphs in a shared and in a second pool, other work, and one pool released."""
    torch, rng = program.torch, random.Random(12)
    shared = torch.cuda.graph_pool_handle()
    net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)).cuda()
    graphs = []

    def capture(batch, pool):
        given = torch.randn(batch, 512, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                net(given)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = net(given)
        graphs.append((graph, given, result))
        program.step(f"graph {batch}")

    for batch in (64, 256):
        capture(batch, shared)
    for batch in (96, 160):
        capture(batch, None)
    for graph, _, _ in graphs:
        graph.replay()
    live = []
    churn(program, rng, 400, live, cap_live=60)
    del graphs[2]
    program.step("one graph destroyed")
    torch.cuda.empty_cache()
    program.step("emptied")
    capture(512, shared)
    graphs.clear()
    torch.cuda.empty_cache()
    program.step("all graphs destroyed")


def mempool(program):
    """Two MemPools, entered in turns; one is deleted while it has blocks."""
    torch, rng, live = program.torch, random.Random(13), []
    first, second = torch.cuda.MemPool(), torch.cuda.MemPool()
    for n in range(6):
        with torch.cuda.use_mem_pool(first if n % 2 == 0 else second):
            live += [program.bytes(draw_size(rng)) for _ in range(25)]
        program.step(f"pool {n % 2}")
        churn(program, rng, 60, live, cap_live=200)
    torch.cuda.empty_cache()
    program.step("emptied")
    live.clear()
    del first
    torch.cuda.empty_cache()
    program.step("first deleted")
    del second
    torch.cuda.empty_cache()
    program.step("second deleted")


def nested_pools(program):
    """Two nested MemPools, on two streams."""
    torch, rng, live = program.torch, random.Random(14), []
    outer, inner, side = torch.cuda.MemPool(), torch.cuda.MemPool(), torch.cuda.Stream()
    for n in range(4):
        with torch.cuda.use_mem_pool(outer):
            live += [program.bytes(draw_size(rng)) for _ in range(8)]
            with torch.cuda.use_mem_pool(inner), torch.cuda.stream(side):
                live += [program.bytes(draw_size(rng)) for _ in range(8)]
            live += [program.bytes(draw_size(rng)) for _ in range(8)]
        program.step(f"round {n}")
        churn(program, rng, 80, live, cap_live=80)
    live.clear()
    program.step("freed")


def expandable_streams(program):
    """Expandable segments, one a stream, that grow and shrink."""
    torch, rng, live = program.torch, random.Random(15), []
    all_streams = (None, torch.cuda.Stream(), torch.cuda.Stream())
    for n in range(3):
        churn(program, rng, 900, live, streams=all_streams, uses=0.25, tag=f"round {n}")
        for _ in range(len(live) // 2):
            del live[rng.randrange(len(live))]
        torch.cuda.empty_cache()
        program.step(f"emptied {n}")


def expandable_oom_gc(program):
    """Expandable segments under a cap, with a garbage collection threshold and OOM errors."""
    program.limit(900 * MIB)
    rng, live = random.Random(16), []
    churn(program, rng, 1800, live, cap_live=400)
    program.torch.cuda.empty_cache()
    program.step("emptied")


def oom_gc(program):
    """Garbage collection by age, retries and out-of-memory errors under a cap, on two streams."""
    torch = program.torch
    program.limit(800 * MIB)
    rng, live = random.Random(17), []
    churn(program, rng, 2200, live, cap_live=400, streams=(None, torch.cuda.Stream()), uses=0.1)


def max_split_roundup(program):
    """max_split_size with a list of divisions: oversize blocks, rounding by power of two."""
    program.limit(1200 * MIB)
    rng, live = random.Random(18), []
    churn(program, rng, 2200, live, cap_live=300)
    program.torch.cuda.empty_cache()
    program.step("emptied")
    churn(program, rng, 600, live, cap_live=300, tag="again")


def large_segments(program):
    """A segment size other than 20 MiB."""
    rng, live = random.Random(19), []
    churn(program, rng, 1800, live)
    program.torch.cuda.empty_cache()
    program.step("emptied")


def non_split_rounding(program):
    """Finds max_non_split_rounding when it is unset and the segment size is not 20 MiB."""
    torch, rng, live = program.torch, random.Random(22), []

    def is_taken(block, request):
        """Returns True if the only free block serves a smaller request; both in MiB."""
        address = program.bytes(block * MIB).data_ptr()
        served = program.bytes(request * MIB).data_ptr()
        torch.cuda.empty_cache()
        return served == address

    # 8, 36 and 76 MiB above the request: the first fits either rule, the last neither.
    results = tuple(is_taken(block, 104) for block in (112, 140, 180))
    rules = {(True, False, False): "stays 20 MiB", (True, True, False): "follows large_segment_size_mb, 64 MiB"}
    words = ["taken" if it else "left" for it in results]
    print(
        f"max_non_split_rounding_mb, not set, {rules.get(results, 'is neither 20 nor 64 MiB')}:"
        " for a request of 104 MiB"
        f" a free block of 112 was {words[0]}, one of 140 {words[1]}, one of 180 {words[2]}"
    )
    program.step("asked")
    for n in range(1200):
        if live and (len(live) > 30 or rng.random() < 0.45):
            del live[rng.randrange(len(live))]
        else:
            live.append(program.bytes(rng.randint(1, 200 * MIB) if rng.random() < 0.7 else draw_size(rng)))
        if n % 300 == 299:
            program.step(f"churn {n}")
    torch.cuda.empty_cache()
    program.step("emptied")


def ring_small(program):
    """A history that overflows after 1,500 entries, on two streams."""
    torch, rng, live = program.torch, random.Random(20), []
    churn(program, rng, 3000, live, streams=(None, torch.cuda.Stream()), uses=0.2)


def train_streams(program):
    """A training loop with batches over a copy stream, as prefetching loaders do it."""
    torch = program.torch
    torch.manual_seed(21)
    rng = random.Random(21)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3, stride=2), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(1024, 10),
    ).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    copying = torch.cuda.Stream()
    for n in range(12):
        batch = torch.randn(rng.randint(8, 96), 3, 64, 64).pin_memory()
        with torch.cuda.stream(copying):
            pixels = batch.cuda(non_blocking=True)
            pixels = pixels * 0.5 + 0.1
        torch.cuda.current_stream().wait_stream(copying)
        pixels.record_stream(torch.cuda.current_stream())
        loss = net(pixels).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        del pixels, loss
        program.step(f"step {n}")


# Name: program, settings, recording options.
PROGRAMS = {
    "streams": (streams, "", HISTORY),
    "train_streams": (train_streams, "", HISTORY),
    "two_pools": (two_pools, "", HISTORY),
    "two_pools_expandable": (two_pools, "expandable_segments:True", HISTORY),
    "mempool": (mempool, "", HISTORY),
    "mempool_expandable": (mempool, "expandable_segments:True", HISTORY),
    "nested_pools": (nested_pools, "", HISTORY),
    "expandable_streams": (expandable_streams, "expandable_segments:True", HISTORY),
    "expandable_oom_gc": (expandable_oom_gc, "expandable_segments:True,garbage_collection_threshold:0.7", HISTORY),
    "oom_gc": (oom_gc, "garbage_collection_threshold:0.6", HISTORY),
    "max_split_roundup": (
        max_split_roundup,
        "max_split_size_mb:24,max_non_split_rounding_mb:30,roundup_power2_divisions:[1:4,4:8,16:2,64:1,>:4]",
        HISTORY,
    ),
    "large_segments": (large_segments, "large_segment_size_mb:48", HISTORY),
    "large_segments_expandable": (large_segments, "expandable_segments:True,large_segment_size_mb:32", HISTORY),
    "non_split_rounding": (non_split_rounding, "large_segment_size_mb:64,max_split_size_mb:100", HISTORY),
    "ring_small": (ring_small, "", {**HISTORY, "max_entries": 1500}),
    **MODELS,
}


def pack(data):
    try:
        import zstandard
    except ImportError:
        return "gz", gzip.compress(data, 9, mtime=0)
    return "zst", zstandard.ZstdCompressor(level=15).compress(data)


def run_one(out, name):
    import torch

    program, _, history = PROGRAMS[name]
    run = Program(torch)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(**history)
    try:
        program(run)
    except Lacking as what:
        print(f"{name}: skipped, the machine lacks {what}", flush=True)
        return
    snapshot = torch.cuda.memory._snapshot()
    truth = {
        "scenario": name,
        "torch": torch.__version__,
        "alloc_conf": PROGRAMS[name][1],
        "steps": run.steps,
        "ooms": run.ooms,
        "last_oom": run.last_oom,
        "stats": dict(torch.cuda.memory_stats()),
        "summary": torch.cuda.memory_summary(),
        "mem_get_info": list(torch.cuda.mem_get_info()),
        "limit_bytes": run.limit_bytes,
        "events": [len(trace) for trace in snapshot["device_traces"]],
        "recorded": history,
        "device_stats": [dict(torch.cuda.memory_stats(device)) for device in range(torch.cuda.device_count())],
    }
    end, packed = pack(pickle.dumps(snapshot, protocol=4))
    with open(os.path.join(out, f"{name}.pickle.{end}"), "wb") as file:
        file.write(packed)
    with open(os.path.join(out, f"{name}.json"), "w") as file:
        json.dump(truth, file, indent=1)
    print(f"{name}: events {truth['events']}, {run.ooms} out of memory, {len(packed)} bytes", flush=True)


def main(arguments):
    if arguments == ["--list"]:
        print("\n".join(f"{name}: {PROGRAMS[name][0].__doc__}" for name in PROGRAMS))
        return 0
    if len(arguments) == 3 and arguments[0] == "--one":
        run_one(arguments[1], arguments[2])
        return 0
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    out, names = arguments[0], arguments[1:] or list(PROGRAMS)
    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        print(f"no such program: {', '.join(unknown)}", file=sys.stderr)
        return 2
    os.makedirs(out, exist_ok=True)
    failed = []
    for name in names:
        environment = dict(os.environ)
        environment.pop("PYTORCH_ALLOC_CONF", None)
        environment["PYTORCH_CUDA_ALLOC_CONF"] = PROGRAMS[name][1]
        begin = time.monotonic()
        try:
            status = subprocess.run(
                [sys.executable, os.path.abspath(__file__), "--one", out, name], env=environment, timeout=90
            ).returncode
        except subprocess.TimeoutExpired:
            status = "no end within 90 s"
        if status != 0:
            failed.append(name)
            print(f"{name}: FAILED ({status})", flush=True)
        else:
            print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
