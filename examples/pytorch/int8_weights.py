"""Quantizes the weights of a GPT to 8 bits for inference.

Effect: the weights take about a quarter of the memory; one at a time is widened when it is used.
On the page: "Who holds it" by category: parameters.
"""

import torch
from _common import Experiment, tensor_bytes
from _models import Gpt, GptConfig, token_batch
from torch import nn
from torch.nn import functional

CONFIG = GptConfig(layers=8, width=512, heads=8)
BATCH = 4


class Int8Linear(nn.Module):
    """A linear layer for inference, with one scale for each row of its weight."""

    def __init__(self, linear):
        super().__init__()
        scale = linear.weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        self.register_buffer("weight", (linear.weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", linear.bias)

    def forward(self, x):
        # The widened weight is freed at the end of this function.
        return functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def quantize(module):
    """Replaces all linear layers in a module."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child))
        else:
            quantize(child)


@torch.no_grad()
def main():
    with Experiment(__doc__) as run:
        model = Gpt(CONFIG).eval()
        tokens = token_batch(CONFIG, BATCH, 0)[:, :-1]
        # From the float32 weights, on the CPU, in both variants.
        expected = model(tokens)
        if run.is_with:
            quantize(model)
        model.to(run.device)
        for _ in run.each_step():
            logits = model(tokens.to(run.device))
        error = (logits.cpu() - expected).square().mean().sqrt() / expected.square().mean().sqrt()
        run.results["relative_error"] = error.item()
        tensors = [*model.parameters(), *model.buffers()]
        run.results["weight_bytes"] = tensor_bytes(tensors)


if __name__ == "__main__":
    main()
