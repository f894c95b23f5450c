"""Trains a Faster R-CNN of torchvision on images with random boxes."""

import torch
import torchvision
from progress import report

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random_target(size):
    corner = torch.rand(5, 2) * size * 0.5
    boxes = torch.cat((corner, corner + 16 + torch.rand(5, 2) * size * 0.4), dim=1)
    return {"boxes": boxes.to(DEVICE), "labels": torch.randint(1, 5, (5,), device=DEVICE)}


def main():
    torch.manual_seed(10)
    model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=256, max_size=256
    ).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
    model.train()
    for step in range(10):
        images = [torch.rand(3, 256, 256, device=DEVICE) for _ in range(4)]
        targets = [random_target(256) for _ in images]
        losses = model(images, targets)
        loss = sum(losses.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{step}: {loss.item():.3f}")
        report(step)


if __name__ == "__main__":
    main()
