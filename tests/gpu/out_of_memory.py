#!/usr/bin/env python3
"""Runs out of memory on vramscope's pool, directly and in a backward pass, and goes on training.

    out_of_memory.py LIBVRAMSCOPE_PLUGGABLE.SO

Prints the errors and the losses. Exit status 1: an error was not as expected or training did not
go on.
"""

import sys

import torch
from torch.nn import functional
from vramscope_torch import Vramscope

MIB = 1 << 20
LIMIT_BYTES = 1500 * MIB


def step(net, optimizer, inputs):
    loss = functional.mse_loss(net(inputs), inputs)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def large_request():
    return torch.empty(4 << 30, dtype=torch.uint8, device="cuda")


def large_backward_pass():
    """Three such tensors fit: enough for the forward pass, too few for two gradients."""
    big = torch.ones(450 * MIB // 4, device="cuda", requires_grad=True)
    doubled = big * 2
    (doubled * doubled).sum().backward()


def fails_with(request, beginning):
    """Returns True if the request fails with the expected message."""
    try:
        request()
    except RuntimeError as error:
        print(f"{request.__name__}: {type(error).__name__}: {error}")
        return str(error).startswith(beginning) and "The largest free block has" in str(error)
    print(f"{request.__name__}: no error")
    return False


def main():
    vramscope = Vramscope(sys.argv[1])
    fraction = LIMIT_BYTES / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(fraction)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512)).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    inputs = torch.randn(256, 512).cuda()
    losses = [step(net, optimizer, inputs)]
    is_expected = fails_with(large_request, "CUDA out of memory. Tried to allocate 4.00 GiB.")
    losses += [step(net, optimizer, inputs) for _ in range(20)]
    is_expected = fails_with(large_backward_pass, "CUDA out of memory. Tried to allocate 450.00 MiB.") and is_expected
    losses += [step(net, optimizer, inputs) for _ in range(20)]
    torch.cuda.synchronize()
    stats = vramscope.memory_stats()
    print(f"losses {losses[0]:.4f} {losses[20]:.4f} {losses[40]:.4f}")
    print(f"ooms {stats['num_ooms']}, {stats['allocated_bytes.all.current'] / MIB:.1f} MiB allocated at the end")
    trained = losses[40] < losses[20] < losses[0]
    # The failed pass has released its memory.
    freed = stats["allocated_bytes.all.current"] < 100 * MIB
    return 0 if is_expected and trained and freed and stats["num_ooms"] == 2 else 1


if __name__ == "__main__":
    sys.exit(main())
