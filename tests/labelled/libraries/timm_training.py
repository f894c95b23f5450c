"""Trains a ResNet of timm, and evaluates it after each epoch."""

import timm
import torch
from progress import report
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train_epoch(model, optimizer, criterion, first):
    model.train()
    for step in range(first, first + 4):
        images = torch.randn(16, 3, 128, 128, device=DEVICE)
        labels = torch.randint(20, (16,), device=DEVICE)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(step)
    return loss.item()


@torch.no_grad()
def evaluate(model):
    model.eval()
    images, labels = torch.randn(32, 3, 128, 128, device=DEVICE), torch.randint(20, (32,), device=DEVICE)
    return (model(images).argmax(dim=1) == labels).float().mean().item()


def main():
    torch.manual_seed(8)
    model = timm.create_model("resnet26", pretrained=False, num_classes=20).to(DEVICE)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    criterion = LabelSmoothingCrossEntropy(0.1)
    for epoch in range(3):
        loss = train_epoch(model, optimizer, criterion, 4 * epoch)
        print(f"{epoch}: {loss:.3f} {evaluate(model):.2f}")


if __name__ == "__main__":
    main()
