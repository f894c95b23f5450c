"""Trains a MobileNet of torchvision in float16 with a GradScaler."""

import torch
import torchvision
from progress import report
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train_step(model, optimizer, scaler, images, labels):
    with torch.autocast(DEVICE, dtype=torch.float16):
        loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def main():
    torch.manual_seed(18)
    model = torchvision.models.mobilenet_v3_large(weights=None, num_classes=40).to(DEVICE)
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler(DEVICE)
    for step in range(10):
        images = torch.rand(32, 3, 160, 160, device=DEVICE).to(memory_format=torch.channels_last)
        labels = torch.randint(40, (32,), device=DEVICE)
        print(f"{step}: {train_step(model, optimizer, scaler, images, labels):.3f}")
        report(step)


if __name__ == "__main__":
    main()
