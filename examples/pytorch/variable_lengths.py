"""Trains on sequences of variable length under five settings of the allocator.

Effect: by default, free blocks are too small for longer sequences, and twice the memory is
reserved; expandable segments need hardly more than is allocated.
On the page: the line of reserved memory in the timeline; "Fragmentation".
"""

import os

from _common import MIB, Experiment

# The settings, the cap and the lengths are those of `vramscope demo`.
SETTINGS = {
    "expandable_segments": "expandable_segments:True",
    "max_split_size": "max_split_size_mb:32",
    "garbage_collection": "garbage_collection_threshold:0.4",
    "roundup_power2": "roundup_power2_divisions:2",
    "default": "",
}
# Garbage collection starts at a share of the process's cap, so there must be one.
CAP_BYTES = 2560 * MIB
# Tokens a sequence. A longer one than all before cannot use the free blocks of the shorter ones.
LENGTHS = (256, 192, 272, 128, 288, 208, 304, 160, 320, 240)
BATCH = 32


def main():
    run = Experiment(__doc__, variants=tuple(SETTINGS), steps=len(LENGTHS))
    # PyTorch reads the settings when it is loaded.
    os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    if SETTINGS[run.variant]:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[run.variant]
    with run:
        import torch
        from _models import Gpt, GptConfig, gpt_loss, token_batch

        if run.on_gpu:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(CAP_BYTES / total)
        config = GptConfig(layers=4, length=max(LENGTHS))
        model = Gpt(config).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        reserved = []
        for step in run.each_step():
            length = LENGTHS[step % len(LENGTHS)]
            loss = gpt_loss(model, token_batch(config, BATCH, step, length).to(run.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
            reserved.append(run.reserved_bytes())
        run.results["settings"] = SETTINGS[run.variant]
        run.results["step_reserved_bytes"] = reserved


if __name__ == "__main__":
    main()
