"""Never clears the gradients (the mistake), or clears them after each step.

Effect: the gradients stay allocated, as many bytes as the parameters, and every step adds to the
gradients of all steps before, which changes the losses.
On the page: "Compare" by line, at the ends of both: the gradients are at the lines of the forward
pass in `_models.py` whose parameters they belong to.
"""

import torch
from _common import Experiment, tensor_bytes
from _models import Gpt, GptConfig, gpt_loss, token_batch

CONFIG = GptConfig(layers=4, width=512, heads=8)
BATCH = 8


def main():
    with Experiment(__doc__) as run:
        model = Gpt(CONFIG).to(run.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in run.each_step():
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            loss = gpt_loss(model, tokens)
            loss.backward()
            optimizer.step()
            if not run.is_with:
                optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
        run.results["gradient_bytes"] = tensor_bytes(model.parameters())


if __name__ == "__main__":
    main()
