#!/usr/bin/env python3
"""A data-parallel training, one process a GPU: prints each rank's losses bit for bit.

    torchrun --nproc-per-node 2 parallel.py OUT [--library LIBVRAMSCOPE_PLUGGABLE.SO] [--steps N]

Each rank writes its device's counters to OUT/rankN.json, and with a library records itself to
OUT/rankN.vram. With VRAMSCOPE_PUSH in the environment all ranks also push to one hub.
"""

import argparse
import json
import os

# cuBLAS results are reproducible only with a workspace of fixed size.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import distributed

from train import Texts, prepare, step


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--library")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    rank, device = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    vramscope = None
    if options.library:
        from vramscope_torch import Vramscope

        os.environ["VRAMSCOPE_RECORD"] = os.path.join(options.out, f"rank{rank}.vram")
        vramscope = Vramscope(options.library)
    torch.cuda.set_device(device)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", device))
    net, _ = prepare()
    net = torch.nn.parallel.DistributedDataParallel(net, device_ids=[device])
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4)
    texts = Texts(options.steps * distributed.get_world_size())
    for n in range(options.steps):
        if vramscope:
            vramscope.mark(f"step {n}")
        # Each rank has its own texts, so that their requests differ.
        loss = step(net, optimizer, texts[n * distributed.get_world_size() + rank].cuda())
        print(f"loss {rank} {n} {float(loss.detach()).hex()}", flush=True)
    distributed.barrier()
    torch.cuda.synchronize()
    stats = vramscope.memory_stats(device) if vramscope else dict(torch.cuda.memory_stats(device))
    with open(os.path.join(options.out, f"rank{rank}.json"), "w") as file:
        json.dump(stats, file, indent=1)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
