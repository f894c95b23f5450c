"""Computes the embeddings of a data set once, to train an adapter on them later."""

import torch
from torch import nn

WIDTH, LAYERS, TOKENS = 1024, 12, 512


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.activation = nn.GELU()

    def forward(self, tokens):
        for layer in self.layers:
            tokens = self.activation(layer(tokens))
        return tokens.mean(dim=0)


def load_caption(index):
    generator = torch.Generator("cuda").manual_seed(index)
    return torch.randn(TOKENS, WIDTH, device="cuda", generator=generator)


def cache_embeddings(encoder, captions):
    cache = {}
    for index in range(captions):
        cache[index] = encoder(load_caption(index))
    return cache


def train_adapter(cache, steps):
    adapter = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.Adam(adapter.parameters())
    for step in range(steps):
        target = cache[step % len(cache)].detach()
        loss = (adapter(target) - target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    torch.cuda.set_per_process_memory_fraction((1536 << 20) / torch.cuda.mem_get_info()[1])
    encoder = Encoder().cuda().eval()
    cache = cache_embeddings(encoder, captions=40)
    print(f"{len(cache)} embeddings, {sum(it.nbytes for it in cache.values()) >> 10} KiB")
    train_adapter(cache, steps=100)


main()
