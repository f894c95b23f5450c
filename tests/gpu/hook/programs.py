"""Programs that use GPU memory in different ways. Each is a function of its arguments' folder.

``hook.py`` runs each in a process of its own, followed by vramscope, and compares what both saw.
"""

import threading

import library_programs
import torch
from torch import nn
from torch.nn import functional

DEVICE = "cuda"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, past=None):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width)), (k, v)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, past=None):
        mixed, cache = self.attention(self.before(x), past)
        x = x + mixed
        return x + self.narrow(functional.gelu(self.wide(self.after(x)))), cache


class Gpt(nn.Module):
    def __init__(self, layers=4, width=256, heads=4, vocabulary=512, checkpoint=False):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)
        self.checkpoint = checkpoint

    def forward(self, tokens, caches=None):
        x = self.tokens(tokens)
        kept = []
        for index, block in enumerate(self.blocks):
            past = caches[index] if caches else None
            if self.checkpoint and self.training:
                x, cache = torch.utils.checkpoint.checkpoint(block, x, past, use_reentrant=False)
            else:
                x, cache = block(x, past)
            kept.append(cache)
        return self.head(x), kept


class ResNet(nn.Module):
    def __init__(self, width=32, blocks=4):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms):
            x = x + functional.relu(norm(conv(x)))
        return self.head(x.mean((2, 3)))


def tokens(batch, length, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 512, (batch, length + 1), generator=draw).to(DEVICE)


def train_step(net, optimizer, batch):
    logits, _ = net(batch[:, :-1])
    loss = functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def gpt_training(steps=20):
    net = Gpt().to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for step in range(steps):
        train_step(net, optimizer, tokens(2 + step % 5, 32 + 17 * (step % 7), step))


def sgd_momentum():
    net = Gpt(layers=2).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(10):
        train_step(net, optimizer, tokens(4, 64, step))


def inference_with_kv_cache():
    net = Gpt().to(DEVICE).eval()
    with torch.inference_mode():
        batch = tokens(2, 15)
        logits, caches = net(batch)
        for _ in range(60):
            logits, caches = net(logits[:, -1:].argmax(-1), caches)


def lora_with_checkpointing():
    net = Gpt(checkpoint=True).to(DEVICE)
    for parameter in net.parameters():
        parameter.requires_grad_(False)

    class Lora(nn.Module):
        def __init__(self, linear, rank=4):
            super().__init__()
            self.linear = linear
            self.down = nn.Linear(linear.in_features, rank, bias=False)
            self.up = nn.Linear(rank, linear.out_features, bias=False)

        def forward(self, x):
            return self.linear(x) + self.up(self.down(x))

    for block in net.blocks:
        block.wide, block.narrow = Lora(block.wide).to(DEVICE), Lora(block.narrow).to(DEVICE)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    for step in range(8):
        train_step(net, optimizer, tokens(4, 96, step))


def mixed_precision():
    net = Gpt().to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda")
    for step in range(10):
        batch = tokens(4, 64, step)
        with torch.autocast("cuda", torch.float16):
            logits, _ = net(batch[:, :-1])
            loss = functional.cross_entropy(logits.reshape(-1, 512), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def accumulation():
    net = Gpt(layers=2).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for step in range(5):
        optimizer.zero_grad(set_to_none=False)
        for part in range(4):
            batch = tokens(2, 48, 10 * step + part)
            logits, _ = net(batch[:, :-1])
            (functional.cross_entropy(logits.reshape(-1, 512), batch[:, 1:].reshape(-1)) / 4).backward()
        optimizer.step()


def detection_with_varying_shapes():
    net = ResNet().to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    draw = torch.Generator().manual_seed(3)
    for _ in range(15):
        height, width = (int(n) for n in torch.randint(64, 320, (2,), generator=draw))
        count = int(torch.randint(1, 200, (1,), generator=draw))
        images = torch.randn(2, 3, height, width, device=DEVICE)
        scores = net(images)
        boxes = torch.rand(count, 4, device=DEVICE)
        overlap = (boxes[:, None] - boxes[None]).abs().sum(-1)
        kept = boxes[overlap.min(1).values < 0.5]
        loss = scores.square().mean() + kept.sum() * 0
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def vision_transformer():
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 256, batch_first=True), 3).to(DEVICE)
    patch = nn.Conv2d(3, 128, 16, 16).to(DEVICE)
    optimizer = torch.optim.AdamW([*net.parameters(), *patch.parameters()])
    for _ in range(8):
        x = patch(torch.randn(4, 3, 128, 128, device=DEVICE)).flatten(2).transpose(1, 2)
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def compiled():
    net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(DEVICE)
    fast = torch.compile(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(6):
        loss = fast(torch.randn(64, 256, device=DEVICE)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def cuda_graphs():
    net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(DEVICE)
    x = torch.randn(64, 256, device=DEVICE)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            net(x).sum().backward()
    torch.cuda.current_stream().wait_stream(side)
    net.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = net(x)
        y.sum().backward()
    for _ in range(5):
        graph.replay()
        torch.randn(128, 128, device=DEVICE)
    torch.cuda.synchronize()
    del graph, y
    torch.cuda.empty_cache()


def mempool():
    pool = torch.cuda.MemPool()
    kept = []
    for number in range(10):
        with torch.cuda.use_mem_pool(pool):
            kept.append(torch.empty(300_000 * (number + 1), device=DEVICE))
        kept.append(torch.empty(200_000, device=DEVICE))
    del kept[::2]
    kept.clear()
    del pool
    torch.cuda.empty_cache()


def two_streams():
    side = torch.cuda.Stream()
    for number in range(30):
        with torch.cuda.stream(side):
            a = torch.empty(1_000_000 + 50_000 * number, device=DEVICE)
            b = a * 2
        torch.cuda.current_stream().wait_stream(side)
        b.record_stream(torch.cuda.current_stream())
        c = b + 1
        del a, b, c
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def out_of_memory_and_recovery():
    torch.cuda.set_per_process_memory_fraction(0.02)
    kept = []
    for size in (64, 16, 4):
        try:
            while True:
                kept.append(torch.empty(size << 18, device=DEVICE))
        except torch.OutOfMemoryError:
            kept = kept[::2]
    kept.clear()
    gpt_training(5)


def threads():
    def work(number):
        stream = torch.cuda.Stream()
        draw = torch.Generator().manual_seed(number)
        kept = []
        with torch.cuda.stream(stream):
            for _ in range(400):
                kept.append(torch.empty(int(torch.randint(1, 3_000_000, (1,), generator=draw)), device=DEVICE))
                if len(kept) > 8:
                    del kept[int(torch.randint(0, 8, (1,), generator=draw))]

    running = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def random_sizes():
    draw = torch.Generator().manual_seed(11)
    kept = []
    for _ in range(5000):
        exponent = float(torch.rand(1, generator=draw)) * 24
        kept.append(torch.empty(int(2 ** exponent) + 1, dtype=torch.uint8, device=DEVICE))
        if len(kept) > 200:
            del kept[int(torch.randint(0, 200, (1,), generator=draw))]
    torch.cuda.empty_cache()
    del kept[::2]
    torch.cuda.empty_cache()


#: Allocator settings of programs, beside the default.
SETTINGS = {
    "expandable_segments": (gpt_training, "expandable_segments:True"),
    "expandable_random": (random_sizes, "expandable_segments:True"),
    "garbage_collection": (random_sizes, "garbage_collection_threshold:0.6"),
    "max_split": (random_sizes, "max_split_size_mb:32"),
    "roundup": (random_sizes, "roundup_power2_divisions:8"),
    "expandable_oom": (out_of_memory_and_recovery, "expandable_segments:True"),
}
PROGRAMS = {
    function.__name__: (function, "")
    for function in (
        gpt_training, sgd_momentum, inference_with_kv_cache, lora_with_checkpointing, mixed_precision,
        accumulation, detection_with_varying_shapes, vision_transformer, compiled, cuda_graphs, mempool,
        two_streams, out_of_memory_and_recovery, threads, random_sizes, *library_programs.PROGRAMS,
    )
} | SETTINGS | library_programs.SETTINGS
