"""Programs with one large buffer for each layer, where two would do or all are needed."""

from .compose import FAULT, Script, program
from .training import bookkeeping, start_bookkeeping, training

LABEL = "peak: one buffer for each layer, all kept until the end of the pass"
FINDING = "peak.layer_buffers"


def widened_weights(draw):
    """Converts the int8 weights of all layers to float16 before the pass over the layers."""
    script = Script(draw, draw.choice(("Runs an int8 model.", "Answers requests with quantized weights.")))
    script.use("from torch.nn import functional")
    layers, width, rows = draw.int(12, 18), draw.choice((3072, 4096)), draw.batch(draw.int(512, 1024, 128))
    script.constant("LAYERS", layers)
    script.constant("WIDTH", width)
    load, answer = draw.name(), draw.name()
    script.function(
        """
        def $load():
            layers = []
            for _ in range(LAYERS):
                weight = torch.randint(-127, 128, (WIDTH, WIDTH), dtype=torch.int8, device=DEVICE)
                scale = torch.full((WIDTH,), 0.0002, dtype=torch.float16, device=DEVICE)
                layers.append((weight, scale))
            return layers
        """,
        load=load,
    )
    if draw.fixed:
        loop = ["for weight, scale in layers:", "    matrix = weight.to(torch.float16).mul_(scale)"]
    else:
        loop = [
            f"matrices = [weight.to(torch.float16).mul_(scale) for weight, scale in layers]{FAULT}",
            "for matrix in matrices:",
        ]
    lines = [*loop, "    hidden = functional.layer_norm(hidden + functional.gelu(hidden @ matrix), (WIDTH,))"]
    body = "\n".join(f"    {line}" for line in ["", *lines, "return hidden"] if line)
    script.function("@torch.inference_mode()\ndef $answer(layers, hidden):\n" + body, answer=answer)
    script.do("layers = $load()", load=load)
    script.loop(
        draw.int(8, 12),
        f"""
        hidden = torch.randn({rows}, WIDTH, dtype=torch.float16, device=DEVICE)
        outputs = {answer}(layers, hidden)
        print(step, float(outputs.float().std()))
        """,
    )
    return program(
        draw, script, LABEL, FINDING, sites=[answer], has_fix=True, bytes=2 * width * width * (layers - 2),
        remedy="convert the weights of a layer right before its use",
    )  # fmt: skip


WORKSPACES = '''
"""A feed-forward model whose blocks write into workspaces."""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.wide = None

    def forward(self, x):
        if self.wide is None:
            self.wide = torch.empty(x.shape[0], 4 * WIDTH, device=x.device)FAULT
        torch.addmm(self.up.bias, self.norm(x), self.up.weight.t(), out=self.wide)
        return x + self.down(functional.relu_(self.wide))


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.score(x)

    def CLEAR(self):
        for block in self.blocks:
            block.wide = None
'''


def workspaces(draw):
    """Each block keeps a workspace of its own until the request has ended."""
    script = Script(draw, draw.choice(("Ranks documents.", "Scores the rows of a table.")))
    script.use("from model import Ranker")
    width, layers = draw.choice((768, 1024)), draw.int(9, 13)
    rows = draw.batch(draw.int(3072, 4096, 256))
    answer, clear = draw.name(), draw.name()
    model = WORKSPACES.strip("\n") + "\n"
    if draw.fixed:
        made = "            self.wide = torch.empty(x.shape[0], 4 * WIDTH, device=x.device)FAULT\n"
        model = model.replace("        if self.wide is None:\n" + made, "")
        model = model.replace("        self.wide = None\n\n", "\n", 1).replace("self.wide", "wide")
        model = model.replace("def forward(self, x):", "def forward(self, x, wide):", 1)
        pass_over = "        for block in self.blocks:\n            x = block(x)\n"
        shared = "        wide = torch.empty(x.shape[0], 4 * WIDTH, device=x.device)\n"
        model = model.replace(pass_over, shared + pass_over.replace("block(x)", "block(x, wide)"))
        model = model.partition("\n    def CLEAR")[0]
    for name, value in (("WIDTH", width), ("LAYERS", layers), ("FAULT", FAULT), ("CLEAR", clear)):
        model = model.replace(name, str(value))
    cleared = [] if draw.fixed else [f"model.{clear}()"]
    lines = ["scores = model(rows)", *cleared, "return scores.flatten().topk(5).indices.tolist()"]
    body = "\n".join(f"    {line}" for line in lines)
    script.function(f"@torch.inference_mode()\ndef $answer(model, rows):\n{body}", answer=answer)
    script.do("model = Ranker().to(DEVICE).eval()")
    script.loop(draw.int(10, 14), f"rows = torch.randn({rows}, {width}, device=DEVICE)\nprint({answer}(model, rows))")
    return program(
        draw, script, LABEL, FINDING, files={"model.py": model}, sites=["forward", answer], has_fix=True,
        bytes=16 * rows * width * (layers - 2), remedy="one workspace for all layers",
    )  # fmt: skip


def needed_activations(draw):
    """Training, whose backward pass needs the equal activations of all blocks."""
    parts = training(draw, "mlp", batch_scale=2, layers=8)
    script = parts.script
    start_bookkeeping(script)
    script.loop(draw.int(8, 12), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return program(
        draw, script, "none (activations of all blocks, for the backward pass)", "none", parts.family, near=FINDING
    )


STATES = '''
"""An encoder whose result is computed from the states of all layers."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.weights = nn.Parameter(torch.zeros(LAYERS))

    def forward(self, x):
        states = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            states.append(x)
        mixed = torch.stack(states, dim=-1) @ self.weights.softmax(dim=0)
        return mixed
'''


def mixed_states(draw):
    """Collects the states of all layers, and needs them all at the end of the pass."""
    script = Script(draw, draw.choice(("Embeds texts.", "Encodes series.")))
    script.use("from model import Encoder")
    width, layers = draw.choice((768, 1024)), draw.int(9, 12)
    rows = draw.batch(draw.int(6144, 10240, 512))
    model = STATES.strip("\n").replace("WIDTH", str(width)).replace("LAYERS", str(layers)) + "\n"
    embed = draw.name()
    script.function(
        f"""
        @torch.inference_mode()
        def $embed(model):
            rows = torch.randn({rows}, {width}, device=DEVICE)
            return model(rows).mean(dim=0).norm().item()
        """,
        embed=embed,
    )
    script.do("model = Encoder().to(DEVICE).eval()")
    script.loop(draw.int(8, 12), f"print(step, {embed}(model))")
    return program(
        draw, script, "none (states of all layers, needed together)", "none", files={"model.py": model}, near=FINDING
    )
