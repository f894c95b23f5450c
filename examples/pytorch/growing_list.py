"""Keeps results in a list, on the GPU (the mistake) or copied to the CPU.

Effect: memory grows by one result a step.
On the page: "Leaks and growth" names the lines that grow.
"""

import torch
from _common import Experiment, tensor_bytes
from _models import SmallResNet

BATCH = 128


@torch.no_grad()
def main():
    with Experiment(__doc__, steps=8) as run:
        model = SmallResNet().to(run.device).eval()
        results = []
        for step in run.each_step():
            draw = torch.Generator().manual_seed(step)
            images = torch.randn(BATCH, 3, 32, 32, generator=draw).to(run.device)
            logits, features = model(images)
            results.append(features if run.is_with else features.cpu())
            run.losses.append(logits.square().mean().item())
            # Not part of the list, and placed differently in each step.
            del images, logits, features
        run.results["result_bytes"] = tensor_bytes(results[:1])


if __name__ == "__main__":
    main()
