"""Continues the training of a model on each rank from a checkpoint of the first rank."""

import os
import tempfile

import torch
from torch import nn

WIDTH, LAYERS, BATCH, STEPS = 2560, 8, 512, 10


def make_model(device):
    layers = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()]
    return nn.Sequential(*layers).to(device)


def save_checkpoint(path):
    """Writes what the first rank writes."""
    model = make_model("cuda:0")
    torch.save({"model": model.state_dict(), "epoch": 3}, path)


def load_checkpoint(path, model):
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    return checkpoint


def train_step(model, optimizer, device):
    inputs = torch.randn(BATCH, WIDTH, device=device)
    loss = (model(inputs) - inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main():
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.ckpt")
        save_checkpoint(path)
        model = make_model(device)
        checkpoint = load_checkpoint(path, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        loss = train_step(model, optimizer, device)
        print(f"rank {rank}, epoch {checkpoint['epoch'] + 1}, step {step}: loss {loss:.4f}")


main()
