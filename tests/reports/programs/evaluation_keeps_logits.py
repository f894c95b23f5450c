"""Fine-tunes a small language model, then evaluates it."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, LENGTH, WIDTH = 16_000, 128, 256


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        hidden = self.embedding(ids)
        return self.head(hidden + self.body(hidden))


def loader(batches, size=8):
    for _ in range(batches):
        yield torch.randint(VOCABULARY, (size, LENGTH + 1), device="cuda")


def train_step(model, optimizer, ids):
    logits = model(ids[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


@torch.no_grad()
def evaluate(model, batches):
    predictions, labels = [], []
    for ids in loader(batches):
        logits = model(ids[:, :-1])
        predictions.append(logits)
        labels.append(ids[:, 1:])
    predictions, labels = torch.cat(predictions), torch.cat(labels)
    return (predictions.argmax(-1) == labels).float().mean().item()


def main():
    torch.cuda.set_per_process_memory_fraction((1536 << 20) / torch.cuda.mem_get_info()[1])
    model = LanguageModel().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, ids in enumerate(loader(10)):
        print(f"step {step}: loss {train_step(model, optimizer, ids):.3f}")
    print(f"accuracy {evaluate(model, 40):.3f}")


main()
