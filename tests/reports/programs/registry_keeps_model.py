"""Evaluates the checkpoints of a training run, one after the other."""

import gc

import torch
from torch import nn

WIDTH, BATCH = 2048, 256


class Accelerator:
    """Moves models to the device and sets their mode."""

    def __init__(self):
        self.device = torch.device("cuda")
        self.models = []

    def prepare(self, model):
        model = model.to(self.device).eval()
        self.models.append(model)
        return model


def load_checkpoint(step):
    torch.manual_seed(step)
    layers = []
    for _ in range(2):
        layers += [nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH, bias=False)]
    return nn.Sequential(*layers)


@torch.no_grad()
def evaluate(model, batches=4):
    errors = []
    for _ in range(batches):
        inputs = torch.randn(BATCH, WIDTH, device="cuda")
        errors.append((model(inputs) - inputs).square().mean().item())
    return sum(errors) / len(errors)


def evaluate_checkpoint(accelerator, step):
    model = accelerator.prepare(load_checkpoint(step))
    error = evaluate(model)
    del model
    gc.collect()
    torch.cuda.empty_cache()
    return error


accelerator = Accelerator()


def main():
    for step in range(1000, 9000, 1000):
        error = evaluate_checkpoint(accelerator, step)
        print(f"checkpoint {step}: error {error:.3f}, allocated {torch.cuda.memory_allocated() >> 20} MiB")


main()
