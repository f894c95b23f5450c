"""Programs with a list, a cache of keys and values, or hooks: growing ones and bounded ones."""

from .compose import FAULT, Script, program
from .training import bookkeeping, start_bookkeeping, training

GROWTH = "growth: "

GENERATOR = '''
"""A decoder that generates one token after the other."""

import torch
from torch import nn
from torch.nn import functional


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(2000, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 2000)

    def forward(self, token, cache):
        x = self.tokens(token)
        for layer, (qkv, mix) in enumerate(zip(self.qkv, self.mix)):
            q, k, v = qkv(x).chunk(3, dim=-1)
            k, v = cache.add(layer, k, v)
            x = x + mix(functional.scaled_dot_product_attention(q, k, v))
        return self.head(x[:, -1])
'''
GROWING_CACHE = """
class Cache:
    def __init__(self):
        self.keys, self.values = {}, {}

    def $add(self, layer, k, v):
        if layer in self.keys:
            k = torch.cat((self.keys[layer], k), dim=1)$fault
            v = torch.cat((self.values[layer], v), dim=1)
        else:
            k, v = k.contiguous(), v.contiguous()
        self.keys[layer], self.values[layer] = k, v
        return self.keys[layer], self.values[layer]
"""
STATIC_CACHE = """
class Cache:
    def __init__(self):
        self.keys = torch.zeros(LAYERS, BATCH, LENGTH, WIDTH, device=DEVICE)
        self.values = torch.zeros_like(self.keys)
        self.length = 0

    def $add(self, layer, k, v):
        if layer == 0:
            self.length += 1
        self.keys[layer, :, self.length - 1 : self.length] = k
        self.values[layer, :, self.length - 1 : self.length] = v
        return self.keys[layer, :, : self.length], self.values[layer, :, : self.length]
"""


def generator(draw, static):
    """Returns the script and the model of a token generator, and the functions of its cache."""
    script = Script(draw, draw.choice(("Generates text.", "Samples from a decoder.")))
    width, layers, batch = draw.choice((768, 1024)), draw.int(2, 3), draw.int(96, 128, 16)
    count, tokens = draw.int(12, 16), 4
    script.use("from model import Decoder")
    script.constant("BATCH", draw.batch(batch))
    add, generate = draw.name(), draw.name()
    if static:
        for name, value in (("WIDTH", width), ("LAYERS", layers), ("LENGTH", count * tokens)):
            script.constant(name, value)
        script.function(STATIC_CACHE, add=add)
    else:
        script.function(GROWING_CACHE, add=add, fault=FAULT)
    script.function(
        f"""
        @torch.inference_mode()
        def $generate(model, cache, token):
            for _ in range({tokens}):
                token = model(token, cache).argmax(dim=-1, keepdim=True)
            return token
        """,
        generate=generate,
    )
    model = GENERATOR.strip("\n").replace("WIDTH", str(width)).replace("LAYERS", str(layers))
    model = model.replace("cache.add(", f"cache.{add}(")
    if "torch." not in model.replace("from torch", ""):
        model = model.replace("import torch\n", "")
    script.do("model = Decoder().to(DEVICE).eval()")
    script.do("cache, token = Cache(), torch.zeros(BATCH, 1, dtype=torch.long, device=DEVICE)")
    script.loop(count, f"token = {generate}(model, cache, token)\nprint(step, token[:4].flatten().tolist())")
    # Keys and values of float32.
    size = 2 * 4 * layers * batch * width * count * tokens
    return script, {"model.py": model}, [add, generate, "forward"], size


def late_history(script, late):
    """Starts the history after the first statements of `main`, which make the model."""
    if late:
        script.start_history(index=1)


def key_values(draw, late=False):
    """Concatenates the keys and values of each token to those of all earlier ones."""
    script, files, sites, size = generator(draw, static=draw.fixed)
    late_history(script, late)
    return program(
        draw, script, GROWTH + "keys and values of each token concatenated", "growth.cache", files=files,
        sites=sites, remedy="allocate the cache once", has_fix=True, bytes=size,
    )  # fmt: skip


def static_key_values(draw, late=False):
    """Writes keys and values into tensors of the full length."""
    script, files, _, _ = generator(draw, static=True)
    late_history(script, late)
    return program(
        draw, script, "none (keys and values in a static cache)", "none", files=files, near="growth.cache"
    )


def results(draw, family=None, late=False):
    """Keeps the outputs of an evaluation without gradients in a list on the GPU."""
    parts = training(draw, family)
    script, evaluate = parts.script, draw.name()
    # Probabilities of many classes, so that the results of a step are 16 to 32 MiB.
    classes = (draw.int(16, 32) << 20) // (4 * parts.batch_size)
    script.function(
        f"""
        @torch.no_grad()
        def $evaluate(model, head, results):
            inputs, _ = $batch(BATCH)
            outputs = head(model(inputs).flatten(1)).softmax(dim=-1)
            results.append(outputs){FAULT}
            return len(results)
        """,
        evaluate=evaluate, batch=parts.batch,
    )  # fmt: skip
    script.do(f"head = torch.nn.LazyLinear({classes}, device=DEVICE)\nresults = []")
    if late:
        script.start_history()
    start_bookkeeping(script)
    train, grow = f"loss = {parts.train}(model, optimizer, BATCH)", f"{evaluate}(model, head, results)"
    count = draw.int(10, 14)
    moved = ["results[:] = [it.cpu() for it in results]"] if draw.fixed else []
    script.loop(count, "\n".join([*draw.shuffled((train, grow)), *moved, bookkeeping(draw)]))
    return program(
        draw, script, GROWTH + "results of an evaluation kept on the GPU", "growth.cache", parts.family,
        remedy="move the results to the CPU after each step", has_fix=True,
        bytes=4 * classes * parts.batch_size * count,
    )  # fmt: skip


def cleared_results(draw, family=None, late=False):
    """Keeps outputs in a list that each epoch clears."""
    parts = training(draw, family, batch_scale=4)
    script, evaluate = parts.script, draw.name()
    rows, width = draw.int(1024, 2048, 256), draw.choice((1024, 1536))
    script.function(
        f"""
        @torch.no_grad()
        def $evaluate(results):
            results.append(torch.randn({rows}, {width}, device=DEVICE).softmax(dim=-1))
            return results[-1].amax().item()
        """,
        evaluate=evaluate,
    )
    start_bookkeeping(script)
    script.do("results = []")
    late_history(script, late)
    clear = f"if step % {draw.int(4, 5)} == 0:\n    results.clear()"
    train, grow = f"loss = {parts.train}(model, optimizer, BATCH)", f"{evaluate}(results)"
    script.loop(draw.int(20, 24), "\n".join([clear, *draw.shuffled((train, grow)), bookkeeping(draw)]))
    return program(
        draw, script, "none (a list that each epoch clears)", "none", parts.family, near="growth.cache"
    )


def replay(draw, bounded=False, late=False):
    """Learns from a replay buffer on the GPU, a list or a deque with a limit."""
    script = Script(draw, draw.choice(("Learns to act from pixels.", "Trains a Q network.")))
    play, learn = draw.name(), draw.name()
    script.use("from torch import nn", "from torch.nn import functional", "import random")
    size, width = draw.choice((84, 96)), draw.choice((256, 512))
    script.constant("BATCH", draw.batch(32))
    script.constant("FRAMES", draw.batch(draw.int(24, 40, 4)))
    script.function(
        f"""
        @torch.no_grad()
        def $play(model, replay):
            for _ in range(4):
                frames = torch.rand(FRAMES, 4, {size}, {size}, device=DEVICE)
                actions = model(frames).argmax(dim=-1)
                replay.append((frames, actions, torch.rand(FRAMES, device=DEVICE)))$fault
        """,
        play=play, fault="" if bounded else FAULT,
    )  # fmt: skip
    script.function(
        """
        def $learn(model, optimizer, replay):
            frames, actions, rewards = (it.to(DEVICE) for it in random.choice(replay))
            values = model(frames[:BATCH]).gather(1, actions[:BATCH, None]).squeeze(1)
            loss = functional.smooth_l1_loss(values, rewards[:BATCH])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()
        """,
        learn=learn,
    )
    script.do(
        f"""
        random.seed({draw.seed})
        model = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(),
            nn.Flatten(), nn.LazyLinear({width}), nn.ReLU(), nn.Linear({width}, 6),
        ).to(DEVICE)
        model(torch.rand(1, 4, {size}, {size}, device=DEVICE))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        """
    )
    if late:
        script.start_history()
    if bounded:
        script.use("import collections")
    script.do("replay = " + ("collections.deque(maxlen=12)" if bounded else "[]"))
    start_bookkeeping(script)
    step = f"{play}(model, replay)\nloss = {learn}(model, optimizer, replay)"
    if draw.fixed:
        step += "\nreplay[:] = [tuple(it.cpu() for it in one) for one in replay]"
    script.loop(draw.int(14, 20), f"{step}\n{bookkeeping(draw)}")
    if bounded:
        return program(draw, script, "none (a replay buffer with a limit)", "none", near="growth.cache")
    return program(
        draw, script, GROWTH + "a replay buffer on the GPU", "growth.cache", has_fix=True,
        remedy="move the frames to the CPU after each step",
    )  # fmt: skip


def kept_by_hook(draw, family="mlp", late=False):
    """A hook that stores what the blocks return; each copy is made in the hook."""
    parts = training(draw, family, batch_scale=1 if family == "conv" else 4)
    script, watch = parts.script, draw.name()
    value = draw.choice(("output.detach().clone()", "output.detach().relu()", "output.detach().abs()"))
    store = f"seen[id(module)] = {value}" if draw.fixed else f"seen.setdefault(id(module), []).append({value}){FAULT}"
    script.function(f"def $watch(module, inputs, output):\n    {store}", watch=watch)
    script.constants.append("seen = {}")
    script.do("for block in model.blocks:\n    block.register_forward_hook($watch)", watch=watch)
    if late:
        script.start_history()
    start_bookkeeping(script)
    script.loop(draw.int(10, 12), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return program(
        draw, script, GROWTH + "a hook stores a copy of activations", "growth.hooks", parts.family,
        sites=[watch, parts.loss, parts.train], remedy="keep the last activation only", has_fix=True,
    )  # fmt: skip


def removed_hooks(draw, family="mlp", late=False):
    """Hooks that store activations, are read and removed in every step."""
    parts = training(draw, family, batch_scale=1 if family == "conv" else 4)
    script, watch, measure = parts.script, draw.name(), draw.name()
    script.function(
        """
        def $measure(model, optimizer):
            seen = []

            def $watch(module, inputs, output):
                seen.append(output.detach().clone())

            handles = [block.register_forward_hook($watch) for block in model.blocks]
            loss = $train(model, optimizer, BATCH)
            for handle in handles:
                handle.remove()
            return loss + 0.0 * sum(it.std().item() for it in seen)
        """,
        measure=measure, watch=watch, train=parts.train,
    )  # fmt: skip
    if late:
        script.start_history()
    start_bookkeeping(script)
    script.loop(draw.int(10, 12), f"loss = {measure}(model, optimizer)\n{bookkeeping(draw)}")
    return program(
        draw, script, "none (hooks that each step removes)", "none", parts.family, near="growth.hooks"
    )
