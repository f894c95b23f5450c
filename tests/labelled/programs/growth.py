"""Programs whose memory grows from step to step."""

from .compose import FAULT, Script, program
from .training import bookkeeping, start_bookkeeping, training

GROWTH = "growth: "


def steps(draw):
    return draw.int(6, 10)


def outputs(draw, family=None, limit_mib=None):
    """Keeps outputs of an evaluation without `no_grad`, with their graphs."""
    parts = training(draw, family)
    script, evaluate = parts.script, draw.name()
    keep, sites = draw.name(), []
    weighted = "outputs.argmax(dim=-1).float() * outputs.amax(dim=-1)"
    value = draw.choice(("outputs.mean(dim=-1)", weighted, "outputs[:1]"))
    detach = ".detach()" if draw.fixed else ""
    style = draw.choice(("list", "function", "dictionary"))
    store = {
        "list": f"results.append(value{detach}){FAULT}",
        "function": f"{keep}(results, value)",
        "dictionary": f"results[len(results)] = value{detach}{FAULT}",
    }[style]
    start = {"dictionary": "{}"}.get(style, "[]")
    script.function(
        f"""
        def $evaluate(model, results):
            inputs, _ = $batch(BATCH // 2)
            outputs = model(inputs)
            value = {value}
            {store}
            return len(results)
        """,
        evaluate=evaluate, batch=parts.batch,
    )  # fmt: skip
    if style == "function":
        script.function(f"def $keep(results, value):\n    results.append(value{detach}){FAULT}", keep=keep)
        sites = [evaluate]
    start_bookkeeping(script)
    script.do(f"kept = {start}")
    grow = f"{evaluate}(model, kept)"
    train = f"loss = {parts.train}(model, optimizer, BATCH)"
    first, second = draw.shuffled((grow, train))
    script.loop(400 if limit_mib else steps(draw), f"{first}\n{second}\n{bookkeeping(draw)}")
    label = "outputs kept with their graphs"
    return finish(draw, parts, label, "growth.outputs", sites, "detach", limit_mib, site=evaluate)


def finish(draw, parts, label, finding, sites, remedy, limit_mib, **facts):
    """Returns the program, which runs out of memory if it has a limit."""
    script = parts.script
    if limit_mib:
        script.limit(limit_mib << 20)
        label, finding = f"oom: leak until failure ({label})", "oom.leak"
    else:
        label = GROWTH + label
    return program(
        draw, script, label, finding, parts.family, sites=sites, remedy=remedy, has_fix=True, **facts
    )  # fmt: skip


def summed_loss(draw, family=None, limit_mib=None):
    """Adds up losses of a validation as tensors."""
    parts = training(draw, family)
    script, evaluate, update = parts.script, draw.name(), draw.name()
    item = ".item()" if draw.fixed else ""
    rule = draw.choice(("total + value", "0.9 * total + 0.1 * value", "total + value / STEPS"))
    script.constant("STEPS", 400 if limit_mib else steps(draw))
    is_apart = draw.choice((True, False))
    if is_apart:
        script.function(f"def $update(total, value):\n    return {rule}{FAULT}", update=update)
        add = f"return {update}(total, value{item})"
    else:
        add = f"value = value{item}\n            total = {rule}{FAULT}\n            return total"
    script.function(
        f"""
        def $evaluate(model, total):
            inputs, targets = $batch(BATCH // 2)
            value = $loss(model, inputs, targets)
            {add}
        """,
        evaluate=evaluate, batch=parts.batch, loss=parts.loss,
    )  # fmt: skip
    start_bookkeeping(script)
    script.do("score = 0.0")
    grow = f"score = {evaluate}(model, score)"
    train = f"loss = {parts.train}(model, optimizer, BATCH)"
    first, second = draw.shuffled((grow, train))
    script.loop("STEPS", f"{first}\n{second}\n{bookkeeping(draw)}")
    script.do('print(f"mean: {float(score):.3f}")')
    sites = [update, evaluate, parts.loss] if is_apart else [evaluate, parts.loss]
    label = "a summed loss keeps graphs"
    return finish(draw, parts, label, "growth.summed_loss", sites, "item", limit_mib, site=evaluate)


def cache(draw, family=None, limit_mib=None):
    """A dictionary, or `lru_cache`, whose keys never repeat."""
    parts = training(draw, family)
    script, look_up = parts.script, draw.name()
    rows, columns = draw.int(4096, 12288, 512), draw.choice((1024, 1536, 2048))
    script.constant("COLUMNS", columns)
    table = draw.choice(
        (
            "torch.randn(rows, COLUMNS, device=DEVICE)",
            "torch.rand(rows, COLUMNS, device=DEVICE)",
            "torch.arange(rows * COLUMNS, device=DEVICE, dtype=torch.float32).view(rows, COLUMNS)",
        )
    )
    if draw.choice((True, False)):
        script.use("import functools")
        script.function(
            f"""
            @functools.lru_cache(maxsize={2 if draw.fixed else None})
            def $look_up(rows):
                return {table}{FAULT}
            """,
            look_up=look_up,
        )
        call = f"{look_up}({rows} + 64 * step)"
    else:
        lines = [
            "def $look_up(known, rows):",
            "    if rows not in known:",
            f"        known[rows] = {table}{FAULT}",
            *(["        while len(known) > 2:", "            known.pop(next(iter(known)))"] if draw.fixed else []),
            "    return known[rows]",
        ]
        script.function("\n".join(lines), look_up=look_up)
        script.do("known = {}")
        call = f"{look_up}(known, {rows} + 64 * step)"
    start_bookkeeping(script)
    train = f"loss = {parts.train}(model, optimizer, BATCH)"
    scale = f"scale = {call}.mean().item()"
    first, second = draw.shuffled((train, scale))
    script.loop(400 if limit_mib else steps(draw), f"{first}\n{second}\nloss *= scale\n{bookkeeping(draw)}")
    bytes_per_step = 4 * rows * columns
    facts = {} if limit_mib else {"bytes": bytes_per_step * 6}
    return finish(draw, parts, "a cache that grows", "growth.cache", [], "bound the cache", limit_mib, **facts)


def hooks(draw, family=None):
    """Forward hooks that store the outputs of the blocks."""
    parts = training(draw, family, batch_scale=1 if family == "conv" else 4)
    script, hook = parts.script, draw.name()
    value = draw.choice(("output", "output.detach()", "output.detach().clone()"))
    if draw.fixed:
        store = f"captured[id(module)] = {value.replace('output', 'output.detach()', 1)}"
    else:
        store = f"captured.setdefault(id(module), []).append({value}){FAULT}"
    script.function(f"def $hook(module, inputs, output):\n    {store}", hook=hook)
    script.constants.append("captured = {}")
    start_bookkeeping(script)
    script.do("for block in model.blocks:\n    block.register_forward_hook($hook)", hook=hook)
    script.loop(steps(draw), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    sites = [hook, parts.loss, parts.train]
    # Stacks name the hook only if it makes a copy.
    site = hook if "clone" in value else parts.loss
    label = "forward hooks store activations"
    return finish(draw, parts, label, "growth.hooks", sites, "remove the hooks", None, site=site)


def optimizers(draw, family=None):
    """A new optimizer each epoch, while schedulers keep the old ones."""
    parts = training(draw, family, optimizer=False)
    script, restart, run = parts.script, draw.name(), draw.name()
    kind = draw.choice(("Adam(model.parameters(), lr=1e-3)", "AdamW(model.parameters(), lr=3e-4)",
                        "SGD(model.parameters(), lr=0.01, momentum=0.9)"))  # fmt: skip
    keep = draw.choice(
        (
            "schedules.append(torch.optim.lr_scheduler.StepLR(optimizer, 1))",
            "schedules.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)))",
            "schedules.append(optimizer)",
        )
    )
    clear = "schedules.clear()" if draw.fixed else "epoch = len(schedules)"
    script.function(
        f"""
        def $restart(model, schedules):
            {clear}
            optimizer = torch.optim.{kind}
            {keep}{FAULT}
            return optimizer
        """,
        restart=restart,
    )
    script.function(
        """
        def $run(model, optimizer):
            return sum($train(model, optimizer, BATCH) for _ in range(2)) / 2
        """,
        run=run, train=parts.train,
    )  # fmt: skip
    start_bookkeeping(script)
    script.do("schedules = []")
    script.loop(
        draw.int(4, 6),
        f"optimizer = {restart}(model, schedules)\nloss = {run}(model, optimizer)\n{bookkeeping(draw)}",
        variable="step",
    )
    sites = [restart, parts.train, run]
    label = "optimizers recreated while old ones are kept"
    return finish(draw, parts, label, "growth.optimizers", sites, "drop the old optimizer", None, site=parts.train)


DECODER = '''
"""A decoder with caches of keys and values."""

import torch
from torch import nn
from torch.nn import functional


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(1000, WIDTH)
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.mix = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, tokens, past):
        x, present = self.tokens(tokens), []
        for layer, (qkv, mix) in enumerate(zip(self.qkv, self.mix)):
            q, k, v = qkv(x).chunk(3, dim=-1)
            if past is not None:
                k = torch.cat((past[layer][0], k), dim=1)
                v = torch.cat((past[layer][1], v), dim=1)
            else:
                k, v = k.contiguous(), v.contiguous()
            present.append((k, v))
            x = x + mix(functional.scaled_dot_product_attention(q, k, v))
        return self.head(x[:, -1]), present
'''


def key_values(draw, family=None):
    """Keys and values of finished requests stay in a dictionary."""
    script = Script(draw, draw.choice(("Serves a model.", "Generates text.", "Answers requests.")))
    width, layers, length = draw.choice((384, 512, 640)), draw.int(2, 4), draw.int(384, 768, 32)
    model = DECODER.strip("\n").replace("WIDTH", str(width)).replace("LAYERS", str(layers))
    script.use("from model import Decoder")
    script.constant("BATCH", draw.batch(draw.choice((8, 12, 16))))
    serve, generate = draw.name(), draw.name()
    new_tokens = draw.int(3, 5)
    script.function(
        f"""
        def $generate(model, prompt, past):
            token, past = model(prompt, past)
            for _ in range({new_tokens}):
                token, past = model(token.argmax(dim=-1, keepdim=True), past)
            return token, past
        """,
        generate=generate,
    )
    clear = "sessions.clear()" if draw.fixed else "count = len(sessions)"
    script.function(
        f"""
        @torch.no_grad()
        def $serve(model, sessions, request):
            {clear}
            length = {length} + 16 * (request % 5)
            prompt = torch.randint(1000, (BATCH, length), device=DEVICE)
            token, past = $generate(model, prompt, None)
            sessions[request] = past{FAULT}
            return token.argmax(dim=-1).tolist()
        """,
        serve=serve, generate=generate,
    )  # fmt: skip
    script.do("model = Decoder().to(DEVICE).eval()\nsessions = {}")
    script.loop(draw.int(6, 9), f"answer = {serve}(model, sessions, step)\nprint(step, answer[:4])")
    return program(
        draw, script, GROWTH + "keys and values of finished requests kept", "growth.cache",
        files={"model.py": model}, sites=[serve, generate], remedy="bound the cache", has_fix=True,
    )  # fmt: skip
