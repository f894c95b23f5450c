"""Trains with sharded parameters that are flattened on a stream of their own at the start."""

import torch


def buffer(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


def shard_parameters(stream):
    """Returns this rank's shard of the flattened parameters."""
    with torch.cuda.stream(stream):
        flat = buffer(600)
        flat.zero_()
        del flat
        shard = buffer(20)
        shard.zero_()
    torch.cuda.current_stream().wait_stream(stream)
    return shard


def forward(shard, mib):
    activations = buffer(mib)
    activations.fill_(1)
    shard.add_(1)
    return activations


def train_step(shard, mib=200):
    activations = forward(shard, mib)
    return activations[-1].item()


def validate(shard, mib=560):
    activations = forward(shard, mib)
    return activations[0].item()


def main():
    torch.cuda.set_per_process_memory_fraction((1000 << 20) / torch.cuda.mem_get_info()[1])
    shard = shard_parameters(torch.cuda.Stream())
    for step in range(10):
        train_step(shard)
        allocated, reserved = torch.cuda.memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20
        print(f"step {step}: allocated {allocated} MiB, reserved {reserved} MiB")
    print(f"validation: {validate(shard)}")


main()
