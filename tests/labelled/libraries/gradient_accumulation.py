"""Trains a transformer with gradients added up over four small batches."""

import torch
from progress import report
from torch import nn
from torch.nn import functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PARTS = 4


class Model(nn.Module):
    def __init__(self, width=384, vocabulary=3000):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.encoder(self.tokens(tokens)))


def train_step(model, optimizer):
    total = 0.0
    for _ in range(PARTS):
        tokens = torch.randint(3000, (8, 129), device=DEVICE)
        outputs = model(tokens[:, :-1])
        loss = functional.cross_entropy(outputs.flatten(0, 1), tokens[:, 1:].flatten()) / PARTS
        loss.backward()
        total += loss.item()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def main():
    torch.manual_seed(19)
    model = Model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(8):
        print(f"{step}: {train_step(model, optimizer):.3f}")
        report(step)


if __name__ == "__main__":
    main()
