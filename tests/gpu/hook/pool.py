#!/usr/bin/env python3
"""Runs programs on vramscope's pool, as `vramscope.use_pool()` puts PyTorch on it.

    pool.py VRAMSCOPE [--out FOLDER] [--jobs N] [NAME...]

VRAMSCOPE is the command; the package must be importable (PYTHONPATH). VRAMSCOPE_POOL_LIBRARY names
another library with the pool than the package's. Each program runs in a process of its own,
recorded, and must do what it does on PyTorch's own allocator. `vramscope info` must agree with the
counters at its end, and `vramscope verify` must match every decision. Programs in COMPARED also run
on PyTorch's own allocator: results and counters must be equal. Prints a line for each program and a
summary; exit status 1 if one failed.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

from results import report

#: Seconds that a program may take.
LIMIT = 100
MIB = 1 << 20


def small_training(steps=8):
    """Trains a network; returns its losses."""
    import torch

    import programs

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(1)
    net = programs.Gpt(layers=2).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    return [programs.train_step(net, optimizer, programs.tokens(4, 64, step)) for step in range(steps)]


def training():
    losses = small_training()
    assert losses[-1] < losses[0], losses
    return [loss.hex() for loss in losses]


def mixed_precision():
    import programs

    programs.mixed_precision()
    return []


def varying_shapes():
    import programs

    programs.detection_with_varying_shapes()
    return []


def expandable_segments():
    import programs

    programs.random_sizes()
    return []


def out_of_memory():
    """A request and a backward pass fail, and the program goes on."""
    import torch

    import vramscope

    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1500 * MIB / total)
    assert abs(torch.cuda.get_per_process_memory_fraction() - 1500 * MIB / total) < 1e-9
    vramscope.on_oom("out_of_memory-saved.vram")

    def fails(call, beginning):
        try:
            call()
        except torch.OutOfMemoryError as error:
            assert str(error).startswith(beginning), error
            return
        raise AssertionError("no torch.OutOfMemoryError")

    def backward():
        big = torch.ones(450 * MIB // 4, device="cuda", requires_grad=True)
        doubled = big * 2
        (doubled * doubled).sum().backward()

    first = small_training(3)
    fails(lambda: torch.empty(4 << 30, dtype=torch.uint8, device="cuda"), "CUDA out of memory. Tried to allocate 4.00")
    fails(backward, "CUDA out of memory. Tried to allocate 450.00 MiB.")
    fails(lambda: torch.empty(1 << 62, dtype=torch.uint8, device="cuda"), "CUDA out of memory. Tried to allocate more")
    assert small_training(3) == first
    assert torch.cuda.memory_stats()["num_ooms"] == 2
    assert os.path.getsize("out_of_memory-saved.vram") > 0
    return ["3 failures"]


def cuda_graph():
    """A captured training step gives what the step gives without a graph."""
    import torch

    torch.manual_seed(2)
    net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()
    x = torch.randn(64, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            net(x).square().sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    expected = [parameter.grad.clone() / 3 for parameter in net.parameters()]
    net.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = net(x).square().sum()
        loss.backward()
    private = [segment for segment in torch.cuda.memory_snapshot() if any(segment["segment_pool_id"])]
    assert private, "the graph has no private pool"
    for _ in range(4):
        for parameter in net.parameters():
            parameter.grad.zero_()
        others = [torch.randn(64, 256, device="cuda") for _ in range(4)]
        graph.replay()
        del others
    torch.cuda.synchronize()
    for parameter, gradient in zip(net.parameters(), expected):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-3)
    del graph, loss
    torch.cuda.empty_cache()
    return [f"{len(private)} private segments"]


def compiled(**options):
    import torch

    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 128)).cuda()
    fast = torch.compile(net, **options)
    x = torch.randn(32, 128, device="cuda")
    with torch.no_grad():
        expected = net(x)
        for _ in range(4):
            torch.testing.assert_close(fast(x).clone(), expected, rtol=1e-2, atol=1e-2)
    if not options:
        fast(x).sum().backward()
    torch.cuda.synchronize()
    return ["equal"]


def compiled_with_graphs():
    import torch

    results = compiled(mode="reduce-overhead")
    assert not torch._inductor.config.triton.cudagraph_trees
    # This backend always uses graph trees.
    fast = torch.compile(torch.nn.Linear(8, 8).cuda(), backend="cudagraphs")
    try:
        for _ in range(4):
            fast(torch.ones(8, 8, device="cuda"))
    except Exception as error:
        assert "graph trees" in str(error), error
        return [*results, "trees refused"]
    raise AssertionError("graph trees were not refused")


def streams():
    """Memory that another stream still reads is not reused."""
    import torch

    side = torch.cuda.Stream()
    for number in range(20):
        source = torch.full((4 << 20,), float(number), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            copied = source.clone()
        source.record_stream(side)
        del source
        other = torch.full((4 << 20,), -1.0, device="cuda")
        side.synchronize()
        assert float(copied[0]) == float(copied[-1]) == number, "the block was reused too early"
        del other, copied
    return ["20 rounds"]


@contextlib.contextmanager
def one_rank(backend):
    """A process group of this process."""
    import torch
    from torch import distributed

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.cuda.set_device(0)
    distributed.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    try:
        yield
    finally:
        torch.cuda.synchronize()
        distributed.destroy_process_group()


def data_parallel():
    import torch

    import programs

    with one_rank("nccl"):
        torch.manual_seed(1)
        net = torch.nn.parallel.DistributedDataParallel(programs.Gpt(layers=2).cuda(), device_ids=[0])
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        losses = [programs.train_step(net, optimizer, programs.tokens(4, 64)) for _ in range(6)]
    assert losses[-1] < losses[0], losses
    return [f"{losses[0]:.3f} to {losses[-1]:.3f}"]


def fully_sharded():
    import torch
    from torch.distributed.fsdp import fully_shard

    import programs

    with one_rank("nccl"):
        torch.manual_seed(1)
        net = programs.Gpt(layers=2).cuda()
        for block in net.blocks:
            fully_shard(block)
        fully_shard(net)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        losses = [programs.train_step(net, optimizer, programs.tokens(4, 64)) for _ in range(6)]
    assert losses[-1] < losses[0], losses
    return [f"{losses[0]:.3f} to {losses[-1]:.3f}"]


def private_pool():
    """torch.cuda.MemPool: its memory is its own, and goes with it."""
    import torch

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.full((3 << 20,), 7.0, device="cuda")
    outside = torch.empty(3 << 20, device="cuda")
    [segment] = pool.snapshot()
    assert tuple(segment["segment_pool_id"]) == tuple(pool.id)
    assert segment["address"] <= kept.data_ptr() < segment["address"] + segment["total_size"]
    assert not segment["address"] <= outside.data_ptr() < segment["address"] + segment["total_size"]
    assert bool((kept == 7).all())
    del kept
    del pool
    left = [segment for segment in torch.cuda.memory_snapshot() if any(segment["segment_pool_id"])]
    assert not left, left
    torch.cuda.MemPool(use_on_oom=True, no_split=True)
    return ["1 segment"]


def statistics():
    """Every function of torch.cuda that says something about memory."""
    import torch

    assert torch.cuda.memory_allocated() == 0
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    more = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    del more
    assert torch.cuda.memory_allocated() == torch.accelerator.memory_allocated() == 3 * MIB
    assert torch.cuda.max_memory_allocated() == 103 * MIB
    assert torch.cuda.memory_reserved() == torch.cuda.max_memory_reserved() == 120 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 20 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 3 * MIB
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
    free, total = torch.cuda.mem_get_info()
    assert 0 < free < total and abs(total / torch.cuda.get_device_properties(0).total_memory - 1) < 0.01
    for abbreviated in (False, True):
        table = torch.cuda.memory_summary(abbreviated=abbreviated)
        assert "Allocated memory" in table and "20480 KiB" in table, table
    torch.backends.cudnn.benchmark = True
    convolution = torch.nn.Conv2d(8, 16, 3).cuda()
    convolution(torch.randn(4, 8, 32, 32, device="cuda")).sum().backward()
    torch.cuda.synchronize()
    del kept
    return ["all"]


def snapshot():
    """A dump with history is read by PyTorch's tools and by vramscope."""
    import torch
    from torch.cuda import _memory_viz

    torch.cuda.memory._record_memory_history(max_entries=100_000)
    small_training(3)
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    state = torch.cuda.memory._snapshot()
    actions = {entry["action"] for entry in state["device_traces"][0]}
    assert {"alloc", "free_requested", "free_completed", "segment_alloc"} <= actions, actions
    allocated = sum(segment["allocated_size"] for segment in state["segments"])
    assert allocated == torch.cuda.memory_allocated()
    assert _memory_viz.segsum(state) and _memory_viz.trace_plot(state)
    return [f"{len(state['device_traces'][0])} entries"]


def late_recording():
    """A session that starts in the middle of the program, with its page."""
    import urllib.request

    import vramscope

    small_training(2)
    session = vramscope.watch(listen="127.0.0.1:0", record="late_recording-part.vram")
    losses = small_training(2)
    address, token = session.url.split("?")
    with urllib.request.urlopen(f"{address}metrics?{token}") as answer:
        assert b"vramscope" in answer.read()
    assert session.stop()
    return [f"{losses[-1]:.3f}"]


#: Name: function, settings.
PROGRAMS = {
    function.__name__: (function, conf)
    for function, conf in (
        (training, None),
        (compiled_with_graphs, None),
        (compiled, None),
        (mixed_precision, None),
        (varying_shapes, "max_split_size_mb:64,garbage_collection_threshold:0.8"),
        (expandable_segments, "expandable_segments:True"),
        (out_of_memory, None),
        (cuda_graph, None),
        (streams, None),
        (data_parallel, None),
        (fully_sharded, None),
        (private_pool, None),
        (statistics, None),
        (snapshot, None),
        (late_recording, None),
    )
}
#: Programs that also run on PyTorch's own allocator.
COMPARED = ("training", "mixed_precision", "varying_shapes", "expandable_segments")
#: Programs that record themselves, by the file that they leave.
OWN_RECORDINGS = {
    "snapshot": "snapshot.pickle",
    "late_recording": "late_recording-part.vram",
    "out_of_memory": "out_of_memory-saved.vram",
}


def run_program(name, on_pool):
    """Runs a program in this process, in the current folder."""
    import torch

    function, conf = PROGRAMS[name]
    recording = contextlib.nullcontext()
    if on_pool:
        import vramscope

        pool = vramscope.use_pool(conf)
        assert not pool.incomplete, pool.incomplete
        if name not in OWN_RECORDINGS:
            recording = vramscope.record(f"{name}.vram")
    with recording:
        results = function()
        torch.cuda.synchronize()
        stats = dict(torch.cuda.memory_stats())
    with open(f"{name}-{'pool' if on_pool else 'native'}.json", "w") as file:
        json.dump({"results": results, "stats": stats}, file)


def read(folder, name):
    with open(os.path.join(folder, name)) as file:
        return json.load(file)


def check(vramscope, folder, name):
    """Compares what a program left; returns what to print, raises AssertionError if it differs."""

    def call(*arguments):
        done = subprocess.run([vramscope, *arguments], capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, f"{arguments}: {done.returncode} {done.stderr[-400:]} {done.stdout[-400:]}"
        return json.loads(done.stdout)

    ours = read(folder, f"{name}-pool.json")
    file = OWN_RECORDINGS.get(name, f"{name}.vram")
    info = call("info", file, "--json")
    device = info["devices"][0]
    if name not in OWN_RECORDINGS:
        assert info["lost_events"] == 0 and device["history_complete"], info
        for key in ("allocated_bytes", "reserved_bytes", "requested_bytes"):
            expected = ours["stats"][f"{key}.all.current"]
            assert device[key] == expected, f"{key}: memory_stats {expected}, recording {device[key]}"
    arguments = []
    if name == "out_of_memory":
        # The limit was set after the pool's settings were recorded.
        arguments = ["--limit-bytes", str(1500 * MIB)]
    verified = call("verify", file, *arguments, "--json")["devices"][0]
    assert verified["divergence"] is None, f"verify: {verified}"
    details = [*ours["results"][:2], f"{verified['matched']} of {verified['events']} events verified"]
    if name in COMPARED:
        native = read(folder, f"{name}-native.json")
        assert native["results"] == ours["results"], f"results: {native['results']}, on the pool {ours['results']}"
        # Among free blocks of one size, the lowest address is taken, and the driver chooses
        # addresses: how often a remainder is split off may differ.
        shared = [key for key in ours["stats"] if key in native["stats"] and not key.startswith("inactive_split")]
        different = [key for key in shared if ours["stats"][key] != native["stats"][key]]
        first = {key: (native["stats"][key], ours["stats"][key]) for key in different[:3]}
        assert not different, f"{len(different)} of {len(shared)} counters differ: {first}"
        details.append(f"{len(shared)} counters as on PyTorch's own allocator")
    return ", ".join(details)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("vramscope")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out")
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--run", choices=["pool", "native"], help=argparse.SUPPRESS)
    options = parser.parse_intermixed_args()
    if options.run:
        run_program(options.names[0], options.run == "pool")
        return
    vramscope = os.path.abspath(options.vramscope)
    out = os.path.abspath(options.out or tempfile.mkdtemp(prefix="pool-"))
    os.makedirs(out, exist_ok=True)
    names = options.names or list(PROGRAMS)

    def run(name, allocator):
        conf = PROGRAMS[name][1] if allocator == "native" else None
        variables = {key: value for key, value in os.environ.items() if not key.startswith("VRAMSCOPE_RECORD")}
        # cuBLAS results are reproducible only with a workspace of fixed size.
        variables |= {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"} | ({"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {})
        command = [sys.executable, os.path.abspath(__file__), vramscope, name, "--run", allocator]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT, cwd=out)
        assert done.returncode == 0, f"on the {allocator} allocator: status {done.returncode}: {done.stderr[-1500:]}"

    def one(name):
        start = time.monotonic()
        try:
            for allocator in ("native", "pool") if name in COMPARED else ("pool",):
                run(name, allocator)
            status, text = "PASS", check(vramscope, out, name)
        except (AssertionError, subprocess.TimeoutExpired, OSError) as error:
            status, text = "FAIL", str(error)
        return status, name, f"{time.monotonic() - start:5.1f} s  {text}"

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as executor:
        report(executor.map(one, names))


if __name__ == "__main__":
    main()
