"""Generates tokens with a cache of keys and values."""

import torch
from torch import nn

LAYERS, BATCH, HEADS, HEAD_SIZE, PROMPT, NEW_TOKENS = 8, 8, 16, 64, 1024, 48
WIDTH = HEADS * HEAD_SIZE


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=False)

    def update_cache(self, keys, values, past):
        if past is not None:
            keys = torch.cat([past[0], keys], dim=2)
            values = torch.cat([past[1], values], dim=2)
        return keys, values

    def forward(self, hidden, past):
        split = self.project(hidden).view(BATCH, -1, 3, HEADS, HEAD_SIZE).permute(2, 0, 3, 1, 4)
        query, keys, values = split[0], split[1].contiguous(), split[2].contiguous()
        keys, values = self.update_cache(keys, values, past)
        mixed = nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=past is None)
        return hidden + mixed.transpose(1, 2).reshape(BATCH, -1, WIDTH), (keys, values)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(LAYERS))

    def forward(self, hidden, past_key_values):
        new_key_values = []
        for layer, past in zip(self.layers, past_key_values, strict=True):
            hidden, new = layer(hidden, past)
            new_key_values.append(new)
        return hidden[:, -1:], new_key_values


@torch.inference_mode()
def generate(model, prompt):
    hidden, past_key_values = model(prompt, [None] * LAYERS)
    for _ in range(NEW_TOKENS):
        hidden, past_key_values = model(hidden, past_key_values)
    return past_key_values


def main():
    model = Model().to("cuda", torch.bfloat16)
    prompt = torch.randn(BATCH, PROMPT, WIDTH, dtype=torch.bfloat16, device="cuda")
    cache = generate(model, prompt)
    size = sum(keys.nbytes + values.nbytes for keys, values in cache)
    print(f"cache {size >> 20} MiB, peak {torch.cuda.max_memory_allocated() >> 20} MiB")


main()
