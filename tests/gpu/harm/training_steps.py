"""What the programs of the harm matrix share: their list, and the models that they train."""

import os
import sys

import job
import torch
from torch import nn

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hook"))
import programs

DEVICE = job.DEVICE
programs.DEVICE = DEVICE
MIB = 1 << 20
PROGRAMS = {}
#: Programs that fill the GPU, so that no other one can run beside them.
ALONE = set()
ON_GPU_ONLY = set()


def program(function=None, *, needs_gpu=False, runs_alone=False):
    """Adds a function to the programs. Used with and without arguments."""
    if function is None:
        return lambda function: program(function, needs_gpu=needs_gpu, runs_alone=runs_alone)
    PROGRAMS[function.__name__] = function
    if needs_gpu:
        ON_GPU_ONLY.add(function.__name__)
    if runs_alone:
        ALONE.add(function.__name__)
    return function


def show(loss):
    value = loss.item() if isinstance(loss, torch.Tensor) else loss
    print(f"loss {value.hex()}", flush=True)


def gpt():
    net = programs.Gpt(layers=2, width=128).to(DEVICE)
    return net, torch.optim.AdamW(net.parameters(), lr=1e-3)


def train(net, optimizer, steps=8, turns=6, varying=True):
    for step in range(steps):
        batch = programs.tokens(2 + step % 3, 32 + 8 * (step % 5), step) if varying else programs.tokens(4, 64, step)
        show(programs.train_step(net, optimizer, batch))
        if step < turns:
            job.turn()


def small_net():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))


def train_small(net, steps=3, device=DEVICE):
    """Trains on batches that are made on a device; None for the default one."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        loss = net(torch.randn(32, 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show(loss)


def fail_to_allocate(size_bytes=4096 * MIB):
    try:
        torch.empty(size_bytes, dtype=torch.uint8, device=DEVICE)
    except torch.OutOfMemoryError as error:
        print(". ".join(str(error).split(". ")[:2]), flush=True)
