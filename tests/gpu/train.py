#!/usr/bin/env python3
"""A training run that is bit-for-bit reproducible on any allocator; prints its losses.

    train.py [--library LIBVRAMSCOPE_PLUGGABLE.SO] [--steps N] [--graph] [--stats FILE]

Without a library it runs on PyTorch's own allocator. A small GPT over text of random lengths, so
that the requests of steps differ; batches come from forked data loader workers over a copy stream
with record_stream. `--graph` ends with a CUDA graph, which allocates from a private pool. The
output does not depend on the allocator. step_times.py measures the steps of this program.
"""

import argparse
import json
import os
import time

# cuBLAS results are reproducible only with a workspace of fixed size.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LAYERS, LONGEST = 512, 512, 8, 8, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.after = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        # Not the fused attention: its backward pass adds in no fixed order.
        scores = (q @ k.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
        hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(functional.gelu(self.wide(self.after(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.tokens(tokens) + self.positions(positions)))


class Texts(torch.utils.data.Dataset):
    """Texts by number; text n is the same in every process."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, n):
        draw = torch.Generator().manual_seed(1000 + n)
        batch = int(torch.randint(1, 9, (1,), generator=draw))
        length = int(torch.randint(16, LONGEST, (1,), generator=draw))
        return torch.randint(0, VOCABULARY, (batch, length + 1), generator=draw)


def step(net, optimizer, tokens):
    logits = net(tokens[:, :-1])
    loss = functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss


def train(net, optimizer, steps, vramscope):
    copying = torch.cuda.Stream()
    # fork: workers inherit the allocator and must not use it.
    loader = torch.utils.data.DataLoader(
        Texts(steps), batch_size=None, num_workers=2, multiprocessing_context="fork", pin_memory=False
    )
    for n, tokens in enumerate(loader):
        with torch.cuda.stream(copying):
            tokens = tokens.pin_memory().cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copying)
        tokens.record_stream(torch.cuda.current_stream())
        if vramscope:
            vramscope.mark(f"step {n}")
        loss = step(net, optimizer, tokens)
        del tokens
        print(f"loss {n} {float(loss.detach()).hex()}", flush=True)
        if n % 10 == 9:
            torch.cuda.empty_cache()


def measure(net, optimizer, steps):
    """Returns the times of steps with equal requests, in ms, after five for warm-up."""
    tokens = torch.randint(0, VOCABULARY, (2, 129), generator=torch.Generator().manual_seed(7)).cuda()
    times = []
    for _ in range(steps + 5):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(net, optimizer, tokens)
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin))
    return times[5:]


def capture(net):
    """Captures a CUDA graph and replays it beside work that must not reuse its memory."""
    given = torch.randint(0, VOCABULARY, (2, 64), generator=torch.Generator().manual_seed(8)).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            net(given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        result = net(given)
    for n in range(4):
        junk = [torch.full((1 << (10 + i),), float("nan"), device="cuda") for i in range(14)]
        graph.replay()
        junk = [it * 2 for it in junk]
        torch.cuda.synchronize()
        print(f"graph {n} {float(result.double().sum()).hex()}")
    del graph, result, junk


def prepare():
    """Returns the net and its optimizer in a reproducible configuration."""
    torch.use_deterministic_algorithms(True)
    # Filling new tensors would hide a block that was allocated twice.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    net = Gpt()
    net.cuda()
    return net, torch.optim.AdamW(net.parameters(), lr=3e-4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--library")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--stats")
    options = parser.parse_args()
    vramscope = None
    if options.library:
        from vramscope_torch import Vramscope

        vramscope = Vramscope(options.library)
    net, optimizer = prepare()
    train(net, optimizer, options.steps, vramscope)
    total = sum(float(it.detach().double().sum()) for it in net.parameters())
    print(f"parameters {total.hex()}")
    if options.graph:
        capture(net)
    if options.stats:
        stats = vramscope.memory_stats() if vramscope else dict(torch.cuda.memory_stats())
        with open(options.stats, "w") as file:
            json.dump(stats, file, indent=1)


if __name__ == "__main__":
    main()
