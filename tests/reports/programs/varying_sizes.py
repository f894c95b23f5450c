"""Trains a draft model on conversations of different lengths, with recent batches as anchors."""

import random

import torch

LIMIT_MIB, BATCHES, ANCHORS = 1500, 40, 6


def buffer(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")


def target_states(length):
    return buffer(length)


def draft_logits(states):
    return buffer(2 * (states.nbytes >> 20))


def summarise(length):
    return buffer(length // 8 + 2)


def train_step(length, anchors):
    states = target_states(length)
    logits = draft_logits(states)
    del states
    anchors.append(summarise(length))
    del logits
    if len(anchors) > ANCHORS:
        anchors.pop(0)


def main():
    torch.cuda.set_per_process_memory_fraction((LIMIT_MIB << 20) / torch.cuda.mem_get_info()[1])
    lengths = random.Random(22)
    anchors = []
    for step in range(BATCHES):
        with torch.profiler.record_function(f"step {step}"):
            train_step(lengths.randrange(40, 200, 2), anchors)
        allocated, reserved = torch.cuda.memory_allocated() >> 20, torch.cuda.memory_reserved() >> 20
        print(f"step {step}: allocated {allocated} MiB, reserved {reserved} MiB")


main()
