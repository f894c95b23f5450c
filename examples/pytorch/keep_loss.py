"""Adds up the losses of an evaluation, as tensors (the mistake) or as numbers.

Effect: the sum keeps the graph and the activations of every batch, about 76 MiB a step.
On the page: "Leaks and growth" names the lines that grow.
"""

import torch
from _common import Experiment
from _models import Gpt, GptConfig, gpt_loss, held_out_batch, token_batch

CONFIG = GptConfig(layers=4)
BATCH, HELD_OUT = 16, 8


def main():
    with Experiment(__doc__, steps=8) as run:
        model = Gpt(CONFIG).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        total = 0.0
        for step in run.each_step():
            loss = gpt_loss(model, token_batch(CONFIG, BATCH, step).to(run.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
            # An evaluation that forgot `no_grad`: no backward pass frees its activations.
            held_out = held_out_batch(CONFIG, HELD_OUT, step).to(run.device)
            held_out_loss = gpt_loss(model, held_out)
            total += held_out_loss if run.is_with else held_out_loss.item()
            del loss, held_out, held_out_loss
        run.results["mean_held_out_loss"] = float(total) / run.steps


if __name__ == "__main__":
    main()
