#!/usr/bin/env python3
"""Records programs with PyTorch's profiler and its memory history at once.

    record.py OUT [NAME…]

Writes OUT/NAME.trace.json.gz, OUT/NAME.pickle.gz (the snapshot of the same run) and OUT/NAME.json.
Each program runs in a process of its own. Needs an NVIDIA GPU; programs for two GPUs are left out
where there is one.
"""

import gzip
import json
import os
import pickle
import subprocess
import sys
import tempfile


def mlp(step):
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    yield
    for _ in range(3):
        step()
        model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Block(__import__("torch").nn.Module):
    def __init__(self, width):
        import torch

        super().__init__()
        self.attention = torch.nn.MultiheadAttention(width, 4, batch_first=True)
        self.up = torch.nn.Linear(width, 4 * width)
        self.down = torch.nn.Linear(4 * width, width)

    def forward(self, x):
        import torch

        x = x + self.attention(x, x, x)[0]
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def transformer(step, lengths=(128, 128, 128), accumulate=1, autocast=False, checkpoint=False):
    import torch
    from torch.utils.checkpoint import checkpoint as recompute

    blocks = torch.nn.ModuleList(Block(256) for _ in range(3)).cuda()
    optimizer = torch.optim.AdamW(blocks.parameters())
    yield
    for length in lengths:
        step()
        for _ in range(accumulate):
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                x = torch.randn(8, length, 256, device="cuda")
                for block in blocks:
                    x = recompute(block, x, use_reentrant=False) if checkpoint else block(x)
                loss = x.float().square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def varlen(step):
    yield from transformer(step, lengths=(64, 200, 96, 300, 120))


def accumulated(step):
    yield from transformer(step, accumulate=3)


def mixed(step):
    yield from transformer(step, autocast=True)


def recomputed(step):
    yield from transformer(step, checkpoint=True)


def convolutions(step):
    import torch

    layers = []
    for channels in (3, 32, 64):
        layers += [torch.nn.Conv2d(channels, max(32, channels * 2), 3), torch.nn.BatchNorm2d(max(32, channels * 2)),
                   torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    yield
    for _ in range(3):
        step()
        model(torch.randn(16, 3, 96, 96, device="cuda")).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def recurrent(step):
    import torch

    model = torch.nn.LSTM(256, 256, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    yield
    for _ in range(3):
        step()
        model(torch.randn(40, 16, 256, device="cuda"))[0].mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def generation(step):
    import torch

    blocks = torch.nn.ModuleList(Block(256) for _ in range(2)).cuda()
    yield
    cache = torch.randn(4, 16, 256, device="cuda")
    with torch.no_grad():
        for _ in range(40):
            step()
            x = cache[:, -1:]
            for block in blocks:
                x = block(x)
            cache = torch.cat([cache, x], dim=1)


def emptied(step):
    import torch

    model = torch.nn.Linear(2048, 2048).cuda()
    yield
    for rows in (3000, 500, 7000, 100):
        step()
        model(torch.randn(rows, 2048, device="cuda")).sum().backward()
        torch.cuda.empty_cache()


def streams(step):
    import torch

    model = torch.nn.Linear(1024, 1024).cuda()
    side = torch.cuda.Stream()
    yield
    for _ in range(3):
        step()
        batch = torch.randn(4096, 1024, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy = batch * 2
            batch.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        model(copy).sum().backward()


def two_devices(step):
    import torch

    first, second = torch.nn.Linear(1024, 1024).cuda(0), torch.nn.Linear(1024, 1024).cuda(1)
    yield
    for _ in range(3):
        step()
        second(first(torch.randn(512, 1024, device="cuda:0")).to("cuda:1")).sum().backward()


# For each program whether it is profiled from the first allocation on, and the settings.
PROGRAMS = {
    "mlp": (mlp, True, ""),
    "transformer": (transformer, False, ""),
    "varlen": (varlen, True, ""),
    "varlen_expandable": (varlen, True, "expandable_segments:True"),
    "accumulated": (accumulated, False, ""),
    "mixed": (mixed, False, ""),
    "recomputed": (recomputed, False, ""),
    "convolutions": (convolutions, True, ""),
    "recurrent": (recurrent, False, ""),
    "generation": (generation, False, ""),
    "emptied": (emptied, True, ""),
    "streams": (streams, True, ""),
    "two_devices": (two_devices, False, ""),
}


def run(name, out):
    import torch
    from torch.profiler import ProfilerActivity, profile

    program, is_from_start, _ = PROGRAMS[name]
    torch.cuda.init()
    profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True, with_stack=True)
    history = {"max_entries": 200_000, "stacks": "python"}
    steps = program(lambda: torch.profiler.record_function("step").__enter__().__exit__(None, None, None))
    if not is_from_start:
        next(steps)
        torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history(**history)
    with profiler:
        for _ in steps:
            pass
        torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    own = os.path.dirname(os.path.abspath(__file__))
    seen = set()
    traces = (entry for trace in snapshot["device_traces"] for entry in trace)
    blocks = (block for segment in snapshot["segments"] for block in [segment, *segment["blocks"]])
    for holder in (*traces, *blocks):
        for frame in holder.get("frames", []):
            if id(frame) not in seen:
                seen.add(id(frame))
                frame["filename"] = frame["filename"].replace(own + "/", "")
    with open(os.path.join(out, f"{name}.pickle.gz"), "wb") as file:
        file.write(gzip.compress(pickle.dumps(snapshot, protocol=4), 9, mtime=0))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path, "rb") as file:
            text = file.read().replace((own + "/").encode(), b"")
    with open(os.path.join(out, f"{name}.trace.json.gz"), "wb") as file:
        file.write(gzip.compress(text, 9, mtime=0))
    facts = {"from_start": is_from_start, "entries": [len(trace) for trace in snapshot["device_traces"]],
             "trace_bytes": len(text), "gpu": torch.cuda.get_device_name(), "pytorch": str(torch.__version__)}
    with open(os.path.join(out, f"{name}.json"), "w") as file:
        json.dump(facts, file, indent=1)
    print(name, facts, flush=True)


def main():
    out, names = sys.argv[1], sys.argv[2:]
    if names[:1] == ["--run"]:
        run(names[1], out)
        return
    os.makedirs(out, exist_ok=True)
    for name in names or PROGRAMS:
        environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": PROGRAMS[name][2]}
        done = subprocess.run([sys.executable, __file__, out, "--run", name], env=environment, check=False)
        if done.returncode != 0:
            print(f"{name} failed", flush=True)


if __name__ == "__main__":
    main()
