"""Clears the gradients to zero, and to none.

Effect: to zero, they stay allocated during the next forward pass: the peak is higher by their size.
On the page: "Compare" by category, at the peaks of both.
"""

import torch
from _common import Experiment, tensor_bytes
from _models import Gpt, GptConfig, gpt_loss, token_batch

CONFIG = GptConfig(layers=4, width=512, heads=8)
BATCH = 8


def main():
    with Experiment(__doc__, variants=("to_zero", "to_none")) as run:
        model = Gpt(CONFIG).to(run.device)
        # Without optimizer state, the peak is at the end of the forward pass.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in run.each_step():
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            loss = gpt_loss(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=run.variant == "to_none")
            run.losses.append(loss.item())
        run.results["gradient_bytes"] = tensor_bytes(model.parameters())


if __name__ == "__main__":
    main()
