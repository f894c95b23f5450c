"""Prepares a model for training with adapters, and trains them."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LAYERS, LENGTH, RANK = 128_000, 1024, 12, 128, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.adapter = nn.Sequential(nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, WIDTH, bias=False))

    def forward(self, hidden):
        return hidden + self.down(functional.gelu(self.up(hidden))) + self.adapter(hidden)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        hidden = self.blocks(self.embedding(ids).to(torch.bfloat16))
        return self.head(hidden.to(self.head.weight.dtype))


def prepare_for_training(model):
    """Freezes the model, and makes its precise parts float32."""
    model.requires_grad_(False)
    for module in (model.embedding, model.head):
        module.weight.data = module.weight.data.to(torch.float32)
    for block in model.blocks:
        block.adapter.requires_grad_(True)


def train_step(model, optimizer):
    ids = torch.randint(VOCABULARY, (LENGTH + 1,))
    loss = functional.cross_entropy(model(ids[:-1]), ids[1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def main():
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("cuda")
    model = Model()
    prepare_for_training(model)
    optimizer = torch.optim.AdamW([it for it in model.parameters() if it.requires_grad])
    for step in range(10):
        with torch.profiler.record_function(f"step {step}"):
            print(f"step {step}: loss {train_step(model, optimizer):.3f}")


main()
