"""Trains an autoencoder, then evaluates it on larger batches; the errors are on the host."""

import torch
from progress import report
from torch import nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def autoencoder():
    encoder = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    decoder = [nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1)]
    return nn.Sequential(*encoder, *decoder)


def train_step(model, optimizer, images):
    loss = functional.mse_loss(model(images), images)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.item()


@torch.no_grad()
def errors(model, images):
    return (model(images) - images).square().mean(dim=(1, 2, 3)).cpu()


def main():
    torch.manual_seed(26)
    model = autoencoder().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(10):
        images = torch.rand(32, 3, 128, 128).to(DEVICE)
        print(f"{step}: {train_step(model, optimizer, images):.4f}")
        report(step)
    model.eval()
    found = []
    for step in range(10, 18):
        images = torch.rand(48, 3, 128, 128).to(DEVICE)
        found.append(errors(model, images))
        report(step)
    print(torch.cat(found).mean())


if __name__ == "__main__":
    main()
