"""Trains two models in turns; the waiting one and its optimizer state are moved to the CPU.

Effect: the peak falls by parameters, gradients and optimizer state of one model; each turn takes
the time of two copies.
On the page: "Peak" by category: parameters, gradients and optimizer state.
"""

import time

import torch
from _common import Experiment, optimizer_bytes, tensor_bytes
from _models import Gpt, GptConfig, gpt_loss, token_batch

CONFIG = GptConfig(layers=4, width=512, heads=8)
BATCH = 4


def move(run, model, optimizer, device):
    """Moves a model and the state of its optimizer, and returns the time in ms."""
    run.synchronize()
    begin = time.perf_counter()
    with run.category("parameter"):
        model.to(device)
    with run.category("optimizer state"):
        for state in optimizer.state.values():
            # Scalars are the numbers of steps, which AdamW keeps on the CPU.
            state.update({name: it.to(device) for name, it in state.items() if it.dim() > 0})
    run.synchronize()
    return 1e3 * (time.perf_counter() - begin)


def main():
    with Experiment(__doc__) as run:
        models = [Gpt(CONFIG) for _ in range(2)]
        optimizers = [torch.optim.AdamW(model.parameters(), lr=3e-4) for model in models]
        move_ms = 0.0
        if not run.is_with:
            for model in models:
                model.to(run.device)
        # The two models are trained in turns.
        for step in run.each_step():
            model, optimizer = models[step % 2], optimizers[step % 2]
            if run.is_with:
                move_ms += move(run, model, optimizer, run.device)
            # Until its next turn, a model on the GPU keeps its gradients.
            optimizer.zero_grad(set_to_none=True)
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            loss = gpt_loss(model, tokens)
            loss.backward()
            optimizer.step()
            run.losses.append(loss.item())
            if run.is_with:
                optimizer.zero_grad(set_to_none=True)
                move_ms += move(run, model, optimizer, "cpu")
        run.results["model_bytes"] = tensor_bytes(models[0].parameters())
        run.results["optimizer_bytes"] = sum(optimizer_bytes(it) for it in optimizers)
        run.results["move_ms"] = round(move_ms / run.steps, 3)


if __name__ == "__main__":
    main()
