"""Checkpoints each block of a deep GPT: the backward pass computes it again.

Effect: only the inputs of blocks are kept: the peak falls by about 70% at identical losses; a step
takes longer.
On the page: "Compare" by line, at the peaks of both.
"""

import torch
from _common import Experiment, difference
from _models import Gpt, GptConfig, gpt_loss, token_batch

LAYERS, BATCH = 12, 32


def main():
    with Experiment(__doc__, steps=4) as run:
        config = GptConfig(layers=LAYERS, checkpoint="blocks" if run.is_with else None)
        model = Gpt(config).to(run.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        for step in run.each_step():
            tokens = token_batch(config, BATCH, step).to(run.device)
            before = run.allocated_bytes()
            loss = gpt_loss(model, tokens)
            run.results["activation_bytes"] = difference(run.allocated_bytes(), before)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())


if __name__ == "__main__":
    main()
