"""Computes a ReLU in place, and with a result of its own.

Effect: the peak falls by nearly one hidden tensor (128 MiB). Autograd refuses to overwrite a tensor
that it saved for the backward pass.
On the page: "Allocations over time" shows one large band less in each step.
"""

import torch
from _common import Experiment
from _models import TwoLayerNet

ROWS, WIDTH, HIDDEN = 16384, 256, 2048


def is_refused(device):
    """Returns true if the backward pass fails after a saved tensor was overwritten."""
    x = torch.ones(8, device=device, requires_grad=True)
    y = x.exp()
    y.add_(1)
    try:
        y.sum().backward()
    except RuntimeError:
        return True
    return False


def main():
    with Experiment(__doc__) as run:
        model = TwoLayerNet(WIDTH, HIDDEN, WIDTH, is_in_place=run.is_with).to(run.device)
        with torch.no_grad():
            for step in run.each_step():
                x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step))
                with run.category("input"):
                    x = x.to(run.device)
                run.losses.append(model(x).square().mean().item())
        # The tensor between the two linear layers.
        run.results["hidden_bytes"] = 4 * ROWS * HIDDEN
        run.results["autograd_refuses"] = is_refused(run.device)


if __name__ == "__main__":
    main()
