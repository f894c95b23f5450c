"""Keeps Adam's state in 8 bits, quantized in blocks of 256 values.

Effect: the optimizer state takes about a quarter of the memory; the losses hardly change.
On the page: "Compare" by category: optimizer state.
"""

import torch
from _common import Experiment, optimizer_bytes
from _models import Gpt, GptConfig, gpt_loss, token_batch
from torch.nn import functional

CONFIG = GptConfig(layers=4, width=512, heads=8)
BATCH, BLOCK = 8, 256


def blocks_of(tensor):
    """Returns a tensor's values as rows of one block each; the last one is filled up with zeros."""
    return functional.pad(tensor.flatten(), (0, -tensor.numel() % BLOCK)).view(-1, BLOCK)


class Adam8bit(torch.optim.Optimizer):
    """Adam whose two moments are bytes with one scale a block."""

    def __init__(self, parameters, lr, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "step": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] += 1
            for parameter in group["params"]:
                self.update(parameter, group)

    def update(self, parameter, group):
        state, gradient = self.state[parameter], blocks_of(parameter.grad)
        if not state:
            scale = gradient.new_zeros(len(gradient), 1)
            state.update(mean=torch.zeros_like(gradient, dtype=torch.int8), mean_scale=scale)
            state.update(root=torch.zeros_like(gradient, dtype=torch.uint8), root_scale=scale)
        beta1, beta2 = group["betas"]
        mean = (state["mean"] * state["mean_scale"]).lerp_(gradient, 1 - beta1)
        # The root of the second moment is stored: it has half the range.
        square = (state["root"] * state["root_scale"]).square_()
        root = square.lerp_(gradient.square(), 1 - beta2).sqrt_()
        state["mean_scale"] = mean.abs().amax(1, keepdim=True).clamp_(min=1e-30) / 127
        state["mean"] = (mean / state["mean_scale"]).round_().to(torch.int8)
        state["root_scale"] = root.amax(1, keepdim=True).clamp_(min=1e-30) / 255
        # Rounded up: a small root that became zero would make the update huge.
        state["root"] = (root / state["root_scale"]).ceil_().clamp_(max=255).to(torch.uint8)
        root /= (1 - beta2 ** group["step"]) ** 0.5
        change = mean.div_(root.add_(group["eps"])).flatten()[: parameter.numel()]
        rate = group["lr"] / (1 - beta1 ** group["step"])
        parameter.add_(change.view_as(parameter), alpha=-rate)


def main():
    with Experiment(__doc__) as run:
        model = Gpt(CONFIG).to(run.device)
        optimizer = (Adam8bit if run.is_with else torch.optim.Adam)(model.parameters(), lr=3e-4)
        for step in run.each_step():
            tokens = token_batch(CONFIG, BATCH, step).to(run.device)
            loss = gpt_loss(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            run.losses.append(loss.item())
        run.results["optimizer_bytes"] = optimizer_bytes(optimizer)


if __name__ == "__main__":
    main()
