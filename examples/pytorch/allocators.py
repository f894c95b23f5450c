"""Trains with PyTorch's caching allocator, with CUDA's own pool, and with plain driver calls.

Effect: plain driver calls take several times as long. Only the caching allocator has a history,
which vramscope records; `used_bytes` of the others is what the device lost in free memory.
On the page: the timeline: reserved memory stays while allocated memory rises and falls.
"""

import os

from _common import Experiment

ENVIRONMENT = {
    "caching": {},
    "cuda_malloc_async": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "no_caching": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}
BATCH = 16


def main():
    run = Experiment(__doc__, variants=tuple(ENVIRONMENT), steps=8)
    # PyTorch reads both when it is loaded.
    os.environ.update(ENVIRONMENT[run.variant])
    with run:
        import torch
        from _models import Gpt, GptConfig, gpt_loss, token_batch

        def free_bytes():
            return torch.cuda.mem_get_info()[0] if run.on_gpu else 0

        config = GptConfig(layers=4)
        first = free_bytes()
        lowest = first
        model = Gpt(config).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        for step in run.each_step():
            loss = gpt_loss(model, token_batch(config, BATCH, step).to(run.device))
            lowest = min(lowest, free_bytes())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
        run.results["used_bytes"] = first - min(lowest, free_bytes())


if __name__ == "__main__":
    main()
