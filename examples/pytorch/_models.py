"""The models of the scripts, written plainly: a GPT and a two-layer net."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class GptConfig:
    """Sizes of a `Gpt`; `length` is the longest sequence."""

    vocabulary: int = 512
    layers: int = 4
    width: int = 256
    heads: int = 4
    length: int = 128
    # What the forward pass does not keep but computes again: None, "blocks" or "layers".
    checkpoint: str | None = None
    # Under autocast, PyTorch computes the softmax in float32 and keeps the probabilities twice, in
    # float32 and in the lower precision. With True, the softmax has the precision of its input.
    low_precision_softmax: bool = False


class KeyValueCache:
    """Keys and values of one block, with room for all tokens that a sequence can have."""

    def __init__(self, config, batch, device):
        shape = (batch, config.heads, config.length, config.width // config.heads)
        self.keys = torch.zeros(shape, device=device)
        self.values = torch.zeros(shape, device=device)
        # Tokens whose keys and values are there.
        self.used = 0

    def extend(self, keys, values):
        """Writes the keys and values of new tokens, and returns those of all tokens so far."""
        begin, end = self.used, self.used + keys.shape[2]
        self.keys[:, :, begin:end] = keys
        self.values[:, :, begin:end] = values
        self.used = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class Block(nn.Module):
    """A pre-norm transformer block with plain softmax attention."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        width = config.width
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.gelu = nn.GELU(approximate="tanh")

    def attention(self, x, is_future, cache=None):
        batch, length, width = x.shape
        heads, head_width = self.config.heads, width // self.config.heads
        # The output of `qkv` is all queries, then all keys, then all values, each head by head.
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, heads, head_width)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.extend(k, v)
        scores = (q @ k.transpose(-2, -1)) * head_width**-0.5
        scores = scores.masked_fill(is_future, float("-inf"))
        precision = scores.dtype if self.config.low_precision_softmax else None
        mixed = scores.softmax(-1, dtype=precision) @ v
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))

    def mlp(self, x):
        return self.down(self.gelu(self.up(self.norm2(x))))

    def forward(self, x, is_future, cache=None):
        if self.config.checkpoint == "layers":
            x = x + recompute(self.attention, x, is_future)
            return x + recompute(self.mlp, x)
        x = x + self.attention(x, is_future, cache)
        return x + self.mlp(x)


class Gpt(nn.Module):
    """A GPT with learned positions, no dropout, and a head without bias that is not tied."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.length, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, caches=None):
        """Returns the logits of each token's successor. With `caches`, one `KeyValueCache` a block,
        `tokens` continue the tokens of earlier calls."""
        past = caches[0].used if caches else 0
        length = tokens.shape[1]
        positions = torch.arange(past, past + length, device=tokens.device)
        is_future = torch.ones(length, past + length, dtype=torch.bool, device=tokens.device)
        is_future = is_future.triu(past + 1)
        x = self.tokens(tokens) + self.positions(positions)
        for index, block in enumerate(self.blocks):
            if self.config.checkpoint == "blocks":
                x = recompute(block, x, is_future)
            else:
                x = block(x, is_future, caches[index] if caches else None)
        return self.head(self.norm(x))


def recompute(function, *arguments):
    """Calls a function whose activations are not kept: the backward pass calls it again."""
    # Without dropout there is no state of random numbers to restore.
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def gpt_loss(model, tokens):
    """Returns the mean cross entropy of a GPT's predictions of `tokens[:, 1:]`."""
    logits = model(tokens[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def token_batch(config, batch, step, length=None):
    """Returns `batch` sequences of `length + 1` tokens, the same for a step in every process.

    Each sequence counts by its own stride, which a small GPT learns in few steps."""
    draw = torch.Generator().manual_seed(1000 + step)
    start = torch.randint(0, config.vocabulary, (batch, 1), generator=draw)
    stride = torch.randint(1, 8, (batch, 1), generator=draw)
    return (start + stride * torch.arange((length or config.length) + 1)) % config.vocabulary


def held_out_batch(config, batch, step):
    """Returns `batch` sequences as `token_batch` does, which no training step has."""
    return token_batch(config, batch, 1_000_000 + step)


class TwoLayerNet(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, inputs, hidden, outputs, is_in_place=False):
        super().__init__()
        self.up = nn.Linear(inputs, hidden)
        self.relu = nn.ReLU(inplace=is_in_place)
        self.down = nn.Linear(hidden, outputs)

    def forward(self, x):
        return self.down(self.relu(self.up(x)))
