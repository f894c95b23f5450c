"""Answers requests and keeps a compressed prefix of each for later ones."""

import torch
from torch import nn

TOKENS, WIDTH, HEADS, HEAD_SIZE = 4096, 1024, 16, 128


class PrefixCache:
    """Keys of the first head by request, limited to `budget` bytes."""

    def __init__(self, budget):
        self.budget = budget
        self.entries = {}

    def used(self):
        return sum(keys.numel() * keys.element_size() for keys in self.entries.values())

    def store(self, request, keys):
        self.entries[request] = keys[:, 0].detach()
        while self.used() > self.budget:
            self.entries.pop(next(iter(self.entries)))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(WIDTH, HEADS * HEAD_SIZE, bias=False)
        self.query = nn.Linear(WIDTH, HEADS * HEAD_SIZE, bias=False)

    def forward(self, hidden):
        keys = self.key(hidden).view(-1, HEADS, HEAD_SIZE)
        query = self.query(hidden[-1:]).view(HEADS, HEAD_SIZE)
        scores = torch.einsum("hd,thd->ht", query, keys)
        return keys, scores.softmax(dim=-1)


def handle_request(model, cache, request):
    hidden = torch.randn(TOKENS, WIDTH, dtype=torch.float16, device="cuda")
    keys, weights = model(hidden)
    cache.store(request, keys)
    return weights.argmax(dim=-1).tolist()


model = Attention().half().cuda()
cache = PrefixCache(budget=64 << 20)


@torch.inference_mode()
def main():
    for request in range(40):
        handle_request(model, cache, request)
        if request % 10 == 9:
            print(f"{request + 1} requests: cache {cache.used() >> 20} of {cache.budget >> 20} MiB")


main()
