"""Keeps small outputs of an evaluation in a list, with their graphs (the mistake) or detached.

Effect: each output keeps all activations of its batch, about 74 MiB a step.
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
        outputs = []
        for step in run.each_step():
            loss = gpt_loss(model, token_batch(CONFIG, BATCH, step).to(run.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
            # An evaluation that forgot `no_grad`: its activations live as long as its output.
            held_out = held_out_batch(CONFIG, HELD_OUT, step).to(run.device)
            output = model(held_out[:, :-1]).mean()
            outputs.append(output if run.is_with else output.detach())
            del loss, held_out, output


if __name__ == "__main__":
    main()
