"""Trains two models in turns; the one that waits is moved to the CPU.

Effect: the peak falls by one model; each turn takes the time of two copies.
On the page: "Peak" by category: parameters.
"""

import time

import torch
from _common import Experiment, tensor_bytes
from _models import Gpt, GptConfig, gpt_loss, token_batch

CONFIG = GptConfig(layers=4, width=512, heads=8)
BATCH = 4


def move(run, model, device):
    """Moves a model and its gradients, and returns the time in ms."""
    run.synchronize()
    begin = time.perf_counter()
    model.to(device)
    run.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def main():
    with Experiment(__doc__) as run:
        models = [Gpt(CONFIG) for _ in range(2)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
        move_ms = 0.0
        if not run.is_with:
            for model in models:
                model.to(run.device)
        # The two models are trained in turns.
        for step in run.each_step():
            model, optimizer = models[step % 2], optimizers[step % 2]
            if run.is_with:
                move_ms += move(run, model, run.device)
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            loss = gpt_loss(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
            if run.is_with:
                move_ms += move(run, model, "cpu")
        run.results["model_bytes"] = tensor_bytes(models[0].parameters())
        run.results["move_ms"] = round(move_ms / run.steps, 3)


if __name__ == "__main__":
    main()
