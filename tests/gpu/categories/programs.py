"""Programs that note what their blocks are for; tests/data/categories has their recordings.

    programs.py NAME FOLDER

Runs a program on a GPU and writes FOLDER/NAME.pickle.gz and FOLDER/NAME.json. `--list` prints the
names. `collect.py` makes the test data of them.
"""

import copy
import math
import os
import sys

import torch
import torch.nn.functional as F
from noted import Notes
from torch import nn

DEVICE = "cuda"
NOTES = Notes()


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1 = nn.LayerNorm(d)
        self.n2 = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)
        self.h = h

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.proj(y)
        return x + self.down(F.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self, d=512, layers=4, vocab=4000, h=8):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Embedding(256, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(layers))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class MLP(nn.Module):
    def __init__(self, *sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


class Net(nn.Module):
    def __init__(self, w=64):
        super().__init__()
        self.stem = nn.Conv2d(3, w, 3, padding=1)
        self.body = nn.ModuleList()
        for i in range(3):
            self.body.append(
                nn.Sequential(
                    nn.Conv2d(w << i, w << i + 1, 3, stride=2, padding=1),
                    nn.BatchNorm2d(w << i + 1),
                    nn.ReLU(),
                    nn.Conv2d(w << i + 1, w << i + 1, 3, padding=1),
                    nn.BatchNorm2d(w << i + 1),
                    nn.ReLU(),
                )
            )
        self.head = nn.Linear(w << 3, 100)

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for part in self.body:
            x = part(x)
        return self.head(x.mean((2, 3)))


def tokens(b=16, t=256, vocab=4000):
    return torch.randint(vocab, (b, t))


def lm_loss(model, ids):
    logits = model(ids)
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


def mlp_adamw():
    model = MLP(1024, 4096, 4096, 1024).to(DEVICE)
    NOTES.model(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        x = torch.randn(8192, 1024).to(DEVICE)
        y = torch.randn(8192, 1024, device=DEVICE)
        NOTES.note("input", x, y)
        opt.zero_grad()
        with NOTES.saved():
            loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()


def mlp_sgd_momentum():
    model = MLP(2048, 4096, 4096, 10).to(DEVICE)
    NOTES.model(model)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = torch.randn(4, 4096, 2048)
    target = torch.randint(10, (4, 4096))
    for x, y in zip(data, target):
        x = x.cuda(non_blocking=True)
        y = y.cuda(non_blocking=True)
        NOTES.note("input", x, y)
        with NOTES.saved():
            loss = F.cross_entropy(model(x), y)
        opt.zero_grad(set_to_none=False)
        loss.backward()
        opt.step()


def gpt_fused():
    model = GPT().to(DEVICE)
    NOTES.model(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for step in range(4):
        ids = tokens().to(DEVICE)
        NOTES.note("input", ids)
        with NOTES.saved():
            loss = lm_loss(model, ids)
        loss.backward()
        opt.step()
        opt.zero_grad(set_to_none=True)


def gpt_autocast():
    model = GPT().to(DEVICE)
    NOTES.model(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler()
    for step in range(4):
        ids = tokens().to(DEVICE)
        NOTES.note("input", ids)
        with NOTES.saved(), torch.autocast("cuda", torch.float16):
            loss = lm_loss(model, ids)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()


def cnn_sgd():
    model = Net().to(DEVICE)
    NOTES.model(model)
    opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for step in range(4):
        images = torch.randn(64, 3, 96, 96)
        labels = torch.randint(100, (64,))
        images, labels = images.to(DEVICE), labels.to(DEVICE)
        NOTES.note("input", images, labels)
        with NOTES.saved():
            loss = F.cross_entropy(model(images), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()


def cnn_sizes():
    torch.backends.cudnn.benchmark = True
    model = Net(96).to(DEVICE, memory_format=torch.channels_last)
    NOTES.model(model)
    opt = torch.optim.Adam(model.parameters())
    for side in (64, 96, 128, 160):
        images = torch.randn(32, 3, side, side, device=DEVICE)
        labels = torch.randint(100, (32,), device=DEVICE)
        NOTES.note("input", images, labels)
        with NOTES.saved():
            loss = F.cross_entropy(model(images), labels)
        loss.backward()
        opt.step()
        opt.zero_grad()


class OwnAdam:
    def __init__(self, params, lr=1e-3):
        self.params = list(params)
        self.lr = lr
        self.t = 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]
        NOTES.note("optimizer state", self.m, self.v)

    @torch.no_grad()
    def step(self):
        self.t += 1
        for p, m, v in zip(self.params, self.m, self.v):
            g = p.grad
            m.mul_(0.9).add_(g, alpha=0.1)
            v.mul_(0.99).addcmul_(g, g, value=0.01)
            update = (m / (1 - 0.9**self.t)) / ((v / (1 - 0.99**self.t)).sqrt() + 1e-8)
            p.sub_(self.lr * update)

    def zero_grad(self):
        for p in self.params:
            p.grad = None


def own_adam():
    model = GPT(layers=3).to(DEVICE)
    NOTES.model(model)
    opt = OwnAdam(model.parameters())
    for step in range(4):
        ids = tokens(8).to(DEVICE)
        NOTES.note("input", ids)
        with NOTES.saved():
            loss = lm_loss(model, ids)
        loss.backward()
        NOTES.gradients(model.parameters())
        opt.step()
        opt.zero_grad()


class Lion:
    """State made lazily in the first step, kept by parameter."""

    def __init__(self, params):
        self.params = list(params)
        self.state = {}

    @torch.no_grad()
    def step(self):
        for p in self.params:
            if p.grad is None:
                continue
            if p not in self.state:
                self.state[p] = torch.zeros_like(p, memory_format=torch.preserve_format)
            m = self.state[p]
            p.add_(torch.sign(m * 0.9 + p.grad * 0.1), alpha=-1e-4)
            m.mul_(0.99).add_(p.grad, alpha=0.01)
        NOTES.note("optimizer state", list(self.state.values()))


def own_lion():
    model = MLP(1024, 4096, 4096, 4096, 512).cuda()
    NOTES.model(model)
    opt = Lion(model.parameters())
    for step in range(5):
        x = torch.randn(2048, 1024, device=DEVICE)
        NOTES.note("input", x)
        with NOTES.saved():
            loss = model(x).square().mean()
        loss.backward()
        NOTES.gradients(model.parameters())
        opt.step()
        for p in model.parameters():
            p.grad = None


def own_rebound():
    """momentum = beta * momentum + gradient: new state at each step; no module of PyTorch."""
    weights = []
    for a, b in ((1024, 4096), (4096, 4096), (4096, 1024)):
        w = torch.randn(a, b, device=DEVICE) / math.sqrt(a)
        w.requires_grad_()
        weights.append(w)
    NOTES.note("parameter", weights)
    momentum = [None] * len(weights)
    for step in range(5):
        x = torch.randn(4096, 1024, device=DEVICE)
        NOTES.note("input", x)
        with NOTES.saved():
            h = x
            for w in weights:
                h = torch.tanh(h @ w)
            loss = (h - x).square().mean()
        grads = torch.autograd.grad(loss, weights)
        NOTES.note("gradient", grads)
        with torch.no_grad():
            for i, (w, g) in enumerate(zip(weights, grads)):
                momentum[i] = g.clone() if momentum[i] is None else 0.9 * momentum[i] + g
                w -= 0.01 * momentum[i]
        NOTES.note("optimizer state", momentum)
        del grads, g, loss, h


class Weights:
    def __init__(self, d, n):
        self.w1 = [torch.randn(d, 4 * d, device=DEVICE) * 0.02 for _ in range(n)]
        self.w2 = [torch.randn(4 * d, d, device=DEVICE) * 0.02 for _ in range(n)]
        for w in self.w1 + self.w2:
            w.requires_grad_()
        NOTES.note("parameter", self.w1, self.w2)

    def __call__(self, x):
        for a, b in zip(self.w1, self.w2):
            x = x + F.relu(x @ a) @ b
        return x


def plain_class():
    model = Weights(768, 4)
    params = model.w1 + model.w2
    opt = torch.optim.Adam(params, lr=1e-3)
    for step in range(4):
        x = torch.randn(4096, 768).to(DEVICE)
        NOTES.note("input", x)
        with NOTES.saved():
            loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()
        opt.zero_grad()


def loaded():
    path = "/tmp/loaded.pt"
    torch.save(GPT(layers=3).state_dict(), path)
    state = torch.load(path, map_location=DEVICE)
    with torch.device("meta"):
        model = GPT(layers=3)
    model.load_state_dict(state, assign=True)
    NOTES.model(model)
    del state
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-4)
    for step in range(4):
        ids = tokens(8).to(DEVICE)
        NOTES.note("input", ids)
        with NOTES.saved():
            loss = lm_loss(model, ids)
        opt.zero_grad()
        loss.backward()
        opt.step()


def checkpointed():
    from torch.utils.checkpoint import checkpoint

    class M(GPT):
        def forward(self, ids):
            x = self.emb(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    model = M(layers=6).to(DEVICE)
    NOTES.model(model)
    opt = torch.optim.AdamW(model.parameters())
    for step in range(3):
        ids = tokens().to(DEVICE)
        NOTES.note("input", ids)
        loss = lm_loss(model, ids)
        loss.backward()
        opt.step()
        opt.zero_grad()


def einsum_attention():
    d, h, t, b = 512, 8, 512, 8
    wq, wk, wv, wo = [
        nn.Parameter(torch.randn(d, h, d // h, device=DEVICE) * 0.02) for _ in range(4)
    ]
    params = [wq, wk, wv, wo]
    NOTES.note("parameter", params)
    opt = torch.optim.Adam(params)
    for step in range(4):
        x = torch.randn(b, t, d, device=DEVICE)
        NOTES.note("input", x)
        with NOTES.saved():
            q = torch.einsum("btd,dhk->bhtk", x, wq)
            k = torch.einsum("btd,dhk->bhtk", x, wk)
            v = torch.einsum("btd,dhk->bhtk", x, wv)
            a = torch.einsum("bhtk,bhsk->bhts", q, k).softmax(-1)
            y = torch.einsum("bhts,bhsk->bhtk", a, v)
            out = torch.einsum("bhtk,dhk->btd", y, wo)
            loss = (out - x).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
        del q, k, v, a, y, out, loss


def lstm():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(10000, 512)
            self.rnn = nn.LSTM(512, 1024, 2, batch_first=True)
            self.out = nn.Linear(1024, 1000)

        def forward(self, x):
            return self.out(self.rnn(self.emb(x))[0])

    model = M().to(DEVICE)
    NOTES.model(model)
    opt = torch.optim.Adam(model.parameters())
    for step in range(4):
        x = torch.randint(1000, (32, 100)).to(DEVICE)
        NOTES.note("input", x)
        with NOTES.saved():
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        opt.step()
        opt.zero_grad()


class CachedAttention(nn.Module):
    def __init__(self, d=1024, h=16):
        super().__init__()
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.h = h

    def forward(self, x, cache):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k = torch.cat([cache[0], k], 2)
            v = torch.cat([cache[1], v], 2)
        else:
            k, v = k.contiguous(), v.contiguous()
        return x + self.proj(
            F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        ), (k, v)


def cache_cat():
    layers = nn.ModuleList(CachedAttention() for _ in range(4)).to(DEVICE).eval()
    NOTES.model(layers)
    with torch.inference_mode():
        x = torch.randn(16, 64, 1024, device=DEVICE)
        NOTES.note("input", x)
        caches = [None] * 4
        for token in range(40):
            for i, layer in enumerate(layers):
                x, caches[i] = layer(x, caches[i])
            NOTES.note("cache", caches)
            x = x[:, -1:].clone()


class StaticCache:
    def __init__(self, layers, b, h, t, k):
        self.k = [
            torch.zeros(b, h, t, k, device=DEVICE, dtype=torch.float16) for _ in range(layers)
        ]
        self.v = [
            torch.zeros(b, h, t, k, device=DEVICE, dtype=torch.float16) for _ in range(layers)
        ]
        NOTES.note("cache", self.k, self.v)

    def update(self, i, pos, k, v):
        self.k[i][:, :, pos : pos + k.shape[2]] = k
        self.v[i][:, :, pos : pos + v.shape[2]] = v
        return self.k[i][:, :, : pos + k.shape[2]], self.v[i][:, :, : pos + v.shape[2]]


def cache_static():
    class A(nn.Module):
        def __init__(self, i, d=1024, h=16):
            super().__init__()
            self.i = i
            self.qkv = nn.Linear(d, 3 * d)
            self.proj = nn.Linear(d, d)
            self.h = h

        def forward(self, x, cache, pos):
            b, t, d = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
            k, v = cache.update(self.i, pos, k, v)
            return x + self.proj(
                F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
            )

    layers = nn.ModuleList(A(i) for i in range(4)).to(DEVICE, torch.float16).eval()
    NOTES.model(layers)
    cache = StaticCache(4, 16, 16, 512, 64)
    with torch.no_grad():
        x = torch.randn(16, 64, 1024, device=DEVICE, dtype=torch.float16)
        NOTES.note("input", x)
        pos = 0
        for token in range(30):
            t = x.shape[1]
            for layer in layers:
                x = layer(x, cache, pos)
            pos += t
            x = x[:, -1:].clone()


def transformers_generate():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = (
        GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=768, n_head=12, vocab_size=5000))
        .to(DEVICE)
        .eval()
    )
    NOTES.model(model)
    ids = torch.randint(5000, (32, 100)).to(DEVICE)
    NOTES.note("input", ids)
    with torch.no_grad():
        out = model(ids, use_cache=True)
        cache = out.past_key_values
        for _ in range(25):
            NOTES.note("cache", [(layer.keys, layer.values) for layer in cache.layers])
            out = model(out.logits[:, -1:].argmax(-1), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
        NOTES.note("cache", [(layer.keys, layer.values) for layer in cache.layers])


def init_dist():
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(29500 + os.getpid() % 1000),
        RANK="0",
        WORLD_SIZE="1",
    )
    torch.distributed.init_process_group("nccl")


def ddp(view=False, sizes=(1024, 4096, 4096, 1024)):
    from torch.nn.parallel import DistributedDataParallel as DDP

    init_dist()
    model = MLP(*sizes).to(DEVICE)
    NOTES.model(model)
    model = DDP(model, device_ids=[0], gradient_as_bucket_view=view)
    opt = torch.optim.AdamW(model.parameters())
    for step in range(4):
        x = torch.randn(4096, sizes[0]).to(DEVICE)
        NOTES.note("input", x)
        with NOTES.saved():
            loss = model(x).square().mean()
        loss.backward()
        if not view:
            NOTES.gradients(model.parameters())
        opt.step()
        opt.zero_grad()


def ddp_plain():
    ddp(False)


def ddp_views():
    ddp(True, (1024, 8192, 1024))


def fsdp():
    from torch.distributed.fsdp import fully_shard

    init_dist()
    model = GPT(layers=4).to(DEVICE)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    NOTES.note("parameter", list(model.parameters()))
    opt = torch.optim.AdamW(model.parameters())
    for step in range(3):
        ids = tokens(8).to(DEVICE)
        NOTES.note("input", ids)
        loss = lm_loss(model, ids)
        loss.backward()
        NOTES.note("gradient", [p.grad for p in model.parameters() if p.grad is not None])
        opt.step()
        opt.zero_grad()


def lora():
    model = GPT(d=768, layers=4).to(DEVICE)
    for p in model.parameters():
        p.requires_grad_(False)

    class Lora(nn.Module):
        def __init__(self, base, r=64):
            super().__init__()
            self.base = base
            dev = base.weight.device
            self.a = nn.Parameter(torch.randn(base.in_features, r, device=dev) * 0.01)
            self.b = nn.Parameter(torch.zeros(r, base.out_features, device=dev))

        def forward(self, x):
            return self.base(x) + x @ self.a @ self.b

    for block in model.blocks:
        block.up = Lora(block.up)
        block.down = Lora(block.down)
        block.qkv = Lora(block.qkv)
    NOTES.model(model)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for step in range(4):
        ids = tokens(8).to(DEVICE)
        NOTES.note("input", ids)
        with NOTES.saved():
            loss = lm_loss(model, ids)
        loss.backward()
        opt.step()
        opt.zero_grad()


def gan():
    g = MLP(128, 2048, 2048, 3072).to(DEVICE)
    d = MLP(3072, 2048, 2048, 1).to(DEVICE)
    NOTES.model(g)
    NOTES.model(d)
    og, od = torch.optim.Adam(g.parameters(), 1e-4), torch.optim.Adam(d.parameters(), 1e-4)
    for step in range(4):
        real = torch.randn(4096, 3072).cuda()
        z = torch.randn(4096, 128, device=DEVICE)
        NOTES.note("input", real, z)
        with NOTES.saved():
            fake = g(z)
            loss_d = F.softplus(-d(real)).mean() + F.softplus(d(fake.detach())).mean()
        od.zero_grad()
        loss_d.backward()
        od.step()
        with NOTES.saved():
            loss_g = F.softplus(-d(fake)).mean()
        og.zero_grad()
        loss_g.backward()
        og.step()


def inference():
    model = Net(96).to(DEVICE).half().eval()
    NOTES.model(model)
    with torch.no_grad():
        for _ in range(6):
            x = torch.randn(64, 3, 128, 128).to(DEVICE, torch.float16)
            NOTES.note("input", x)
            model(x)


def accumulate():
    model = GPT(layers=3).to(DEVICE)
    NOTES.model(model)
    opt = torch.optim.AdamW(model.parameters())
    for step in range(3):
        for micro in range(3):
            ids = tokens(8).to(DEVICE)
            NOTES.note("input", ids)
            with NOTES.saved():
                loss = lm_loss(model, ids) / 3
            loss.backward()
            NOTES.gradients(model.parameters())
        opt.step()
        opt.zero_grad()


def ema():
    model = MLP(1024, 4096, 4096, 1024).to(DEVICE)
    shadow = copy.deepcopy(model)
    NOTES.model(model)
    NOTES.model(shadow)
    opt = torch.optim.AdamW(model.parameters())
    for step in range(4):
        x = torch.randn(4096, 1024).to(DEVICE)
        NOTES.note("input", x)
        with NOTES.saved():
            loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for s, p in zip(shadow.parameters(), model.parameters()):
                s.lerp_(p, 0.01)


def late():
    model = GPT(layers=3).to(DEVICE)
    NOTES.model(model)
    opt = torch.optim.AdamW(model.parameters())
    for step in range(4):
        if step == 1:
            NOTES.begin()
        ids = tokens(8).to(DEVICE)
        NOTES.note("input", ids)
        with NOTES.saved():
            loss = lm_loss(model, ids)
        loss.backward()
        opt.step()
        opt.zero_grad()


def late_own():
    model = MLP(1024, 4096, 4096, 1024).to(DEVICE)
    NOTES.model(model)
    NOTES.begin()
    opt = Lion(model.parameters())
    for step in range(4):
        x = torch.randn(4096, 1024).to(DEVICE)
        NOTES.note("input", x)
        with NOTES.saved():
            loss = model(x).square().mean()
        loss.backward()
        NOTES.gradients(model.parameters())
        opt.step()
        for p in model.parameters():
            p.grad = None


def loader():
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.randn(512, 3, 64, 64), torch.randint(100, (512,)))
    model = Net(48).to(DEVICE)
    NOTES.model(model)
    opt = torch.optim.Adam(model.parameters())
    for images, labels in DataLoader(data, 128, pin_memory=True):
        images = images.to(DEVICE, non_blocking=True)
        labels = labels.to(DEVICE, non_blocking=True)
        NOTES.note("input", images, labels)
        with NOTES.saved():
            loss = F.cross_entropy(model(images), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()


class MasterAdam(torch.optim.Optimizer):
    """An optimizer of the user's own as a subclass, with float32 masters of bfloat16 parameters."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s["master"] = p.float()
                    s["m"] = torch.zeros_like(s["master"])
                    s["v"] = torch.zeros_like(s["master"])
                g = p.grad.float()
                s["m"].lerp_(g, 0.1)
                s["v"].lerp_(g * g, 0.01)
                s["master"].addcdiv_(s["m"], s["v"].sqrt().add_(1e-8), value=-1e-3)
                p.copy_(s["master"])


def master_weights():
    model = GPT(layers=3).to(DEVICE, torch.bfloat16)
    NOTES.model(model)
    opt = MasterAdam(model.parameters())
    for step in range(4):
        ids = tokens(8).to(DEVICE)
        NOTES.note("input", ids)
        with NOTES.saved():
            loss = lm_loss(model, ids)
        loss.backward()
        opt.step()
        opt.zero_grad()


def compiled():
    model = MLP(1024, 4096, 4096, 1024).to(DEVICE)
    NOTES.model(model)
    run = torch.compile(model)
    opt = torch.optim.AdamW(model.parameters())
    for step in range(4):
        x = torch.randn(4096, 1024).to(DEVICE)
        NOTES.note("input", x)
        loss = run(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


def functional():
    from torch.func import functional_call, grad

    model = MLP(1024, 4096, 1024).to(DEVICE)
    NOTES.model(model)
    params = {k: v.detach() for k, v in model.named_parameters()}
    m = {k: torch.zeros_like(v) for k, v in params.items()}
    NOTES.note("optimizer state", list(m.values()))
    for step in range(4):
        x = torch.randn(8192, 1024, device=DEVICE)
        NOTES.note("input", x)
        g = grad(lambda p: functional_call(model, p, (x,)).square().mean())(params)
        NOTES.note("gradient", list(g.values()))
        for k in params:
            m[k].mul_(0.9).add_(g[k])
            params[k].sub_(m[k], alpha=1e-3)
        del g


class Encoder(nn.Module):
    """A vision transformer of PyTorch's own layers."""

    def __init__(self, width=384, layers=4):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(width, 1000)

    def forward(self, images):
        return self.head(self.layers(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


def vision_transformer():
    model = Encoder().to(DEVICE)
    NOTES.model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(4):
        images = torch.randn(64, 3, 160, 160).to(DEVICE)
        labels = torch.randint(1000, (64,)).to(DEVICE)
        NOTES.note("input", images, labels)
        with NOTES.saved():
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class UNet(nn.Module):
    def __init__(self, w=48):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, w, 3, padding=1), nn.Conv2d(w, 2 * w, 3, 2, 1)])
        self.middle = nn.Conv2d(2 * w, 2 * w, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * w, w, 2, stride=2)
        self.out = nn.Conv2d(2 * w, 3, 3, padding=1)

    def forward(self, x):
        skip = F.silu(self.down[0](x))
        x = F.silu(self.middle(F.silu(self.down[1](skip))))
        return self.out(torch.cat([skip, self.up(x)], 1))


def diffusion():
    model = UNet().to(DEVICE)
    shadow = copy.deepcopy(model).requires_grad_(False)
    NOTES.model(model)
    NOTES.model(shadow)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(4):
        images = torch.randn(32, 3, 64, 64).cuda()
        noise = torch.randn_like(images)
        NOTES.note("input", images, noise)
        with NOTES.saved():
            loss = F.mse_loss(model(images + noise), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, new in zip(shadow.parameters(), model.parameters()):
                kept.lerp_(new, 0.01)


class Momentum:
    """An optimizer of the program's own, with float32 state of bfloat16 parameters."""

    def __init__(self, parameters):
        self.parameters = [p for p in parameters if p.requires_grad]
        self.buffers = {}
        for index, p in enumerate(self.parameters):
            self.buffers[index] = torch.zeros(p.shape, dtype=torch.float32, device=p.device)
        NOTES.note("optimizer state", self.buffers)

    @torch.no_grad()
    def update(self):
        for index, p in enumerate(self.parameters):
            self.buffers[index].mul_(0.9).add_(p.grad.float())
            p.add_(self.buffers[index].to(p.dtype), alpha=-1e-3)
            p.grad = None


def own_momentum():
    model = Encoder(512).to(DEVICE).to(torch.bfloat16)
    NOTES.model(model)
    optimizer = Momentum(model.parameters())
    for _ in range(4):
        images = torch.randn(32, 3, 160, 160, dtype=torch.bfloat16).to(DEVICE)
        NOTES.note("input", images)
        with NOTES.saved():
            loss = model(images).float().square().mean()
        loss.backward()
        NOTES.gradients(model.parameters())
        optimizer.update()


def llama_training():
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4000,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=4,
        num_attention_heads=8,
    )
    model = LlamaForCausalLM(config).to(DEVICE)
    NOTES.model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        ids = tokens(8, 256).to(DEVICE)
        NOTES.note("input", ids)
        with NOTES.saved():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def llama_generate():
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4000,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=4,
        num_attention_heads=16,
    )
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()
    NOTES.model(model)
    ids = tokens(32, 128).to(DEVICE)
    NOTES.note("input", ids)
    cache = DynamicCache(config=config)
    with torch.no_grad():
        for _ in range(30):
            logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
            ids = logits[:, -1:].argmax(-1)
            NOTES.note("cache", [(layer.keys, layer.values) for layer in cache.layers])


def ddp_small_buckets():
    from torch.nn.parallel import DistributedDataParallel

    init_dist()
    model = GPT(layers=3).to(DEVICE)
    NOTES.model(model)
    parallel = DistributedDataParallel(model, device_ids=[0], bucket_cap_mb=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for _ in range(4):
        ids = tokens(8).to(DEVICE)
        NOTES.note("input", ids)
        with NOTES.saved():
            loss = lm_loss(parallel, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def by_hand():
    """Weights in a dictionary, Adam as plain functions."""
    shapes = {"a": (784, 2048), "b": (2048, 2048), "c": (2048, 10)}
    weights = {}
    for name, shape in shapes.items():
        weights[name] = (torch.randn(shape, device=DEVICE) * 0.02).requires_grad_()
    first = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    second = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    NOTES.note("parameter", weights)
    NOTES.note("optimizer state", first, second)
    for step in range(1, 6):
        images = torch.rand(8192, 784).to(DEVICE)
        labels = torch.randint(10, (8192,)).to(DEVICE)
        NOTES.note("input", images, labels)
        with NOTES.saved():
            hidden = torch.relu(images @ weights["a"])
            hidden = torch.relu(hidden @ weights["b"])
            loss = F.cross_entropy(hidden @ weights["c"], labels)
        loss.backward()
        NOTES.gradients(weights.values())
        with torch.no_grad():
            for name, weight in weights.items():
                first[name].lerp_(weight.grad, 0.1)
                second[name].lerp_(weight.grad.square(), 0.001)
                weight -= 1e-3 * first[name] / (second[name].sqrt() + 1e-8)
                weight.grad = None
        del hidden, loss


class Experts(nn.Module):
    def __init__(self, width=512, count=4):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(MLP(width, 2 * width, width) for _ in range(count))

    def forward(self, x):
        chosen = self.gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            where = chosen == index
            out[where] = expert(x[where])
        return x + out


def experts():
    model = nn.Sequential(Experts(), Experts(), Experts()).to(DEVICE)
    NOTES.model(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        x = torch.randn(16384, 512).to(DEVICE)
        NOTES.note("input", x)
        with NOTES.saved():
            loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


PROGRAMS = [
    mlp_adamw,
    mlp_sgd_momentum,
    gpt_fused,
    gpt_autocast,
    cnn_sgd,
    cnn_sizes,
    own_adam,
    own_lion,
    own_rebound,
    plain_class,
    loaded,
    checkpointed,
    einsum_attention,
    lstm,
    cache_cat,
    cache_static,
    transformers_generate,
    ddp_plain,
    ddp_views,
    fsdp,
    lora,
    gan,
    inference,
    accumulate,
    ema,
    late,
    late_own,
    loader,
    master_weights,
    compiled,
    functional,
    vision_transformer,
    diffusion,
    own_momentum,
    llama_training,
    llama_generate,
    ddp_small_buckets,
    by_hand,
    experts,
]
#: Programs that begin the history themselves, after they made the model.
LATE = [late, late_own]


def main():
    if sys.argv[1:] == ["--list"]:
        print("\n".join(program.__name__ for program in PROGRAMS))
        return
    name, folder = sys.argv[1:]
    program = next(program for program in PROGRAMS if program.__name__ == name)
    torch.manual_seed(0)
    NOTES.note_steps()
    if program not in LATE:
        NOTES.begin()
    program()
    torch.cuda.synchronize()
    NOTES.write(folder, name)


if __name__ == "__main__":
    main()
