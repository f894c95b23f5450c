"""Trains a small U-Net to remove noise from images, with averaged weights."""

import torch
from progress import report
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.norm = nn.GroupNorm(8, after)
        self.time = nn.Linear(64, after)

    def forward(self, x, time):
        x = functional.silu(self.norm(self.first(x)) + self.time(time)[:, :, None, None])
        return functional.silu(self.second(x))


class Network(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.down1, self.down2 = Block(3, width), Block(width, 2 * width)
        self.middle = Block(2 * width, 4 * width)
        self.up2, self.up1 = Block(6 * width, 2 * width), Block(3 * width, width)
        self.last = nn.Conv2d(width, 3, 1)

    def forward(self, x, noise_level):
        frequencies = torch.arange(1, 33, device=x.device)
        angles = noise_level[:, None] * frequencies
        time = torch.cat((angles.sin(), angles.cos()), dim=1)
        high = self.down1(x, time)
        low = self.down2(functional.avg_pool2d(high, 2), time)
        x = self.middle(functional.avg_pool2d(low, 2), time)
        x = self.up2(torch.cat((functional.interpolate(x, scale_factor=2), low), dim=1), time)
        return self.last(self.up1(torch.cat((functional.interpolate(x, scale_factor=2), high), dim=1), time))


def main():
    torch.manual_seed(24)
    model = Network().to(DEVICE)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for step in range(10):
        images = torch.rand(16, 3, 64, 64, device=DEVICE)
        level, noise = torch.rand(16, device=DEVICE), torch.randn_like(images)
        share = level[:, None, None, None]
        predicted = model(images * (1 - share) + noise * share, level)
        loss = functional.mse_loss(predicted, noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        averaged.update_parameters(model)
        print(f"{step}: {loss.item():.3f}")
        report(step)


if __name__ == "__main__":
    main()
