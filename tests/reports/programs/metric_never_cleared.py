"""Trains a classifier for three epochs and prints a metric after each."""

import torch
from torch import nn
from torch.nn import functional

CLASSES, BATCH, STEPS = 1024, 2048, 20


class Confidence:
    """Mean confidence of the predicted class."""

    def __init__(self):
        self.scores = []

    def update(self, logits):
        self.scores.append(logits.detach().softmax(dim=-1))

    def compute(self):
        return torch.stack([scores.amax(dim=-1).mean() for scores in self.scores]).mean()


def training_step(model, optimizer, metric, images, labels):
    logits = model(images)
    loss = functional.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    metric.update(logits)
    return loss


def train_epoch(model, optimizer, metric, epoch):
    for step in range(STEPS):
        with torch.profiler.record_function(f"step {epoch * STEPS + step}"):
            images = torch.randn(BATCH, 512, device="cuda")
            labels = torch.randint(CLASSES, (BATCH,), device="cuda")
            training_step(model, optimizer, metric, images, labels)
    print(f"epoch {epoch}: confidence {metric.compute().item():.4f}")


model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
metric = Confidence()


def main():
    for epoch in range(3):
        train_epoch(model, optimizer, metric, epoch)


main()
