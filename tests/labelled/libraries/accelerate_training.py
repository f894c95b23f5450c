"""Trains a model with accelerate, which accumulates the gradients of two batches."""

import torch
from accelerate import Accelerator
from progress import report
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 1024


def main():
    torch.manual_seed(17)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(16_384, WIDTH), torch.randint(32, (16_384,)))
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=1024))
    for step, (inputs, labels) in enumerate(batches):
        with accelerator.accumulate(model):
            loss = functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"{step}: {loss.item():.3f}")
        report(step)


if __name__ == "__main__":
    main()
