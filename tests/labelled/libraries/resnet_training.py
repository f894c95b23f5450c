"""Trains a ResNet-18 of torchvision with SGD and a schedule."""

import torch
import torchvision
from progress import report
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def main():
    torch.manual_seed(9)
    model = torchvision.models.resnet18(weights=None, num_classes=100).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 14)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for step in range(14):
        images = torch.randn(32, 3, 160, 160).to(DEVICE, non_blocking=True)
        labels = torch.randint(100, (32,)).to(DEVICE, non_blocking=True)
        loss = criterion(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        print(f"{step}: {loss.item():.3f}")
        report(step)


if __name__ == "__main__":
    main()
