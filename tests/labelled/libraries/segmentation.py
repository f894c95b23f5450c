"""Trains an LR-ASPP of torchvision for segmentation."""

import torch
import torchvision
from progress import report
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train_step(model, optimizer, images, masks):
    outputs = model(images)
    loss = functional.cross_entropy(outputs["out"], masks)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main():
    torch.manual_seed(11)
    model = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=12
    ).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for step in range(10):
        images = torch.rand(8, 3, 224, 224, device=DEVICE)
        masks = torch.randint(12, (8, 224, 224), device=DEVICE)
        print(f"{step}: {train_step(model, optimizer, images, masks):.3f}")
        report(step)


if __name__ == "__main__":
    main()
