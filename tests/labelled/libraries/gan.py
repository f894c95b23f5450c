"""Trains a generator and a discriminator against each other."""

import torch
from progress import report
from torch import nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(128, 256, 4), nn.BatchNorm2d(256), nn.ReLU(),
        nn.ConvTranspose2d(256, 128, 4, stride=2, padding=1), nn.BatchNorm2d(128), nn.ReLU(),
        nn.ConvTranspose2d(128, 64, 4, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, stride=2, padding=1), nn.Tanh(),
    )  # fmt: skip


def discriminator():
    return nn.Sequential(
        nn.Conv2d(3, 64, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(64, 128, 4, stride=2, padding=1), nn.LeakyReLU(0.2),
        nn.Conv2d(128, 256, 4, stride=2, padding=1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(256 * 64, 1),
    )  # fmt: skip


def judged(discriminator, images, is_real):
    scores = discriminator(images)
    return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(is_real)))


def main():
    torch.manual_seed(20)
    maker, judge = generator().to(DEVICE), discriminator().to(DEVICE)
    makers = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for step in range(12):
        real = torch.rand(64, 3, 64, 64, device=DEVICE)
        fake = maker(torch.randn(64, 128, 1, 1, device=DEVICE))
        loss = judged(judge, real, True) + judged(judge, fake.detach(), False)
        judges.zero_grad()
        loss.backward()
        judges.step()
        fooled = judged(judge, fake, True)
        makers.zero_grad()
        fooled.backward()
        makers.step()
        print(f"{step}: {loss.item():.3f} {fooled.item():.3f}")
        report(step)


if __name__ == "__main__":
    main()
