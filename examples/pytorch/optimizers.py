"""Trains with AdamW, Adam, SGD with momentum, and plain SGD.

Effect: the state takes twice, twice, once and none of the bytes of the parameters.
On the page: "Compare" by category: optimizer state.
"""

import torch
from _common import Experiment, optimizer_bytes, tensor_bytes
from _models import Gpt, GptConfig, gpt_loss, token_batch

CONFIG = GptConfig(layers=4, width=512, heads=8)
BATCH = 8
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=3e-4),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=3e-4),
    "sgd_momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
}


def main():
    with Experiment(__doc__, variants=tuple(OPTIMIZERS)) as run:
        model = Gpt(CONFIG).to(run.device)
        optimizer = OPTIMIZERS[run.variant](model.parameters())
        for step in run.each_step():
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            loss = gpt_loss(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
        run.results["parameter_bytes"] = tensor_bytes(model.parameters())
        run.results["optimizer_bytes"] = optimizer_bytes(optimizer)


if __name__ == "__main__":
    main()
