"""Programs whose batches vary in shape, and for which more or less is reserved than they need.

Freed blocks of one shape do not fit the next one, so the allocator obtains further segments. How
much that costs depends on the order and the range of the shapes.
"""

from .compose import FAULT, Script, fill, program

HEAD = '''
"""The model."""

import torch
from torch import nn
'''
# All models take one tensor of any length or size.
MODELS = {
    "images": """
class $model(nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [], 3
        for width, stride in (($width, 1), (2 * $width, 2), (3 * $width, 2)):
            layers += [nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 100)

    def forward(self, x):
        return self.head(self.features(x).mean(dim=(2, 3)))
""",
    "texts": """
class $model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(2000, $width)
        layer = nn.TransformerEncoderLayer($width, 4, 4 * $width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, $layers, enable_nested_tensor=False)
        self.head = nn.Linear($width, 2000)

    def forward(self, x):
        return self.head(self.encoder(self.tokens(x)))
""",
    "series": """
class $model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, $width)
        self.mixers = nn.ModuleList(nn.Linear($width, 2 * $width) for _ in range($layers))
        self.last = nn.Linear($width, 16)

    def forward(self, x):
        x = self.first(x)
        for mixer in self.mixers:
            value, gate = mixer(torch.cumsum(x, dim=1) / x.shape[1] ** 0.5).chunk(2, dim=-1)
            x = x + value * torch.sigmoid(gate)
        return self.last(x)
""",
    "requests": """
class $model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(4000, $width)
        self.norms = nn.ModuleList(nn.LayerNorm($width) for _ in range($layers))
        self.ups = nn.ModuleList(nn.Linear($width, 4 * $width) for _ in range($layers))
        self.downs = nn.ModuleList(nn.Linear(4 * $width, $width) for _ in range($layers))

    def forward(self, x):
        x = self.tokens(x)
        for norm, up, down in zip(self.norms, self.ups, self.downs):
            x = x + down(torch.relu(up(norm(x))))
        return x
""",
}
BATCHES = {
    "images": """
        def $batch(shape):
            height, width = shape
            inputs = torch.randn(BATCH, 3, height, width, device=DEVICE)
            return inputs, torch.randint(100, (BATCH,), device=DEVICE)
        """,
    "texts": """
        def $batch(shape):
            tokens = torch.randint(2000, (BATCH, shape + 1), device=DEVICE)
            return tokens[:, :-1], tokens[:, 1:]
        """,
    "series": """
        def $batch(shape):
            values = torch.randn(BATCH, shape + 1, 16, device=DEVICE)
            return values[:, :-1], values[:, 1:]
        """,
}
LOSSES = {
    "images": "functional.cross_entropy(outputs, targets)",
    "texts": "functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())",
    "series": "functional.mse_loss(outputs, targets)",
}
TITLES = {
    "images": "Trains a classifier on images of all sizes.",
    "texts": "Trains a language model on texts of all lengths.",
    "series": "Trains a model of time series.",
    "requests": "Serves requests of all lengths.",
}
# Smallest and largest shape, and the batch size.
RANGES = {"images": (96, 320, 8), "texts": (48, 384, 16), "series": (1024, 8192, 8), "requests": (32, 768, 24)}
# The orders that leave little unused.
KINDS = {
    "bucketed": "padded to two lengths",
    "decreasing": "in decreasing order",
    "small": "small beside the weights",
}


def size_of(shape):
    return shape[0] * shape[1] if isinstance(shape, tuple) else shape


def draw_shapes(draw, data, order):
    """Returns a shape for each step, in the order that decides what is reserved."""
    low, high, _ = RANGES[data]
    count, step = draw.int(16, 24), max(1, low // 32)

    def one(smallest=low):
        return draw.int(smallest, high, step)

    if order == "growing":
        factor = (high / low) ** (1 / (count - 1))
        return [int(low * factor**index) for index in range(count)]
    if order == "bucketed":
        large, small = high, high - high // 4
        return [large, *draw.shuffled([large, small] * (count // 2))]
    shapes = [(one(), one()) if data == "images" else one() for _ in range(count)]
    if order == "decreasing":
        return sorted(shapes, key=size_of, reverse=True)
    # Shapes that vary, the largest late.
    large = sorted(shapes, key=size_of)[-3:]
    return [*(it for it in shapes if it not in large), *large]


def varying(draw, data="images", order="varying", conf="", late=False):
    """Trains on batches of varying shape, or serves such requests."""
    shapes = draw_shapes(draw, data, order)
    if draw.fixed:
        # The own remedy of such a program: all batches are padded to the largest.
        largest = max(shapes, key=size_of)
        shapes = [largest for _ in shapes]
    script = Script(draw, TITLES[data])
    script.use("from model import build_model")
    values = {
        "model": draw.choice(("Model", "Net", "Network", "Encoder")),
        "width": draw.choice((24, 32)) if data == "images" else draw.choice((256, 320, 384)),
        "layers": draw.int(2, 4),
    }
    if data == "requests":
        values["width"], values["layers"] = draw.choice((512, 640)), draw.int(2, 3)
    elif data == "texts":
        values["layers"] = 2
    batch = RANGES[data][2]
    if order == "small":
        # Weights, gradients and momentum are most of the memory.
        values["width"], batch = 1024, 1
    source = HEAD if "torch." in MODELS[data].replace("torch.nn", "") else HEAD.replace("import torch\n", "")
    model = fill(source + "\n" + MODELS[data], **values) + "\n\n\ndef build_model():\n    return $model()\n".replace(
        "$model", values["model"]
    )
    script.constant("BATCH", draw.batch(batch))
    script.constant("SHAPES", shapes)
    script.do("model = build_model().to(DEVICE)")
    sites = serve(draw, script, late) if data == "requests" else train(draw, script, data, late, order)
    is_near = order in KINDS or "expandable" in conf
    kind = KINDS.get(order, "expandable segments")
    if is_near:
        label, finding = f"none (batches of varying shape, {kind})", "none"
        facts = {"near": "waste.reserved"}
    else:
        label, finding = f"waste: reserved for batches of varying shape ({data})", "waste.reserved"
        facts = {"sites": sites, "remedy": "expandable_segments:True", "has_fix": True}
    return program(draw, script, label, finding, files={"model.py": model}, conf=conf, **facts)


def train(draw, script, data, late, order):
    """Adds training. Returns the functions that may be named."""
    batch, loss, step = draw.name(), draw.name(), draw.name()
    script.use("from torch.nn import functional")
    script.function(BATCHES[data], batch=batch)
    script.function(
        f"""
        def $loss(model, inputs, targets):
            outputs = model(inputs){FAULT}
            return {LOSSES[data]}
        """,
        loss=loss,
    )
    script.function(
        """
        def $step(model, optimizer, shape):
            inputs, targets = $batch(shape)
            loss = $loss(model, inputs, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()
        """,
        step=step, batch=batch, loss=loss,
    )  # fmt: skip
    sgd = "SGD(model.parameters(), lr=0.01, momentum=0.9)"
    optimizer = sgd if order == "small" else draw.choice(("AdamW(model.parameters(), lr=1e-3)", sgd))
    script.do(f"optimizer = torch.optim.{optimizer}")
    if late:
        script.start_history()
    script.loop("len(SHAPES)", f'loss = {step}(model, optimizer, SHAPES[step])\nprint(f"{{step}}: {{loss:.3f}}")')
    return [loss, step, batch]


def serve(draw, script, late):
    """Adds a server that keeps features of recent requests. Returns its possible culprits."""
    answer, encode = draw.name(), draw.name()
    script.use("import collections")
    script.function(
        """
        def $encode(model, length):
            tokens = torch.randint(4000, (BATCH, length), device=DEVICE)
            return model(tokens)$fault
        """,
        encode=encode, fault=FAULT,
    )  # fmt: skip
    script.function(
        """
        @torch.inference_mode()
        def $answer(model, recent, length):
            features = $encode(model, length)
            recent.append(features.mean(dim=1))
            return torch.stack(list(recent)).std().item()
        """,
        answer=answer, encode=encode,
    )  # fmt: skip
    script.do(f"model.eval()\nrecent = collections.deque(maxlen={draw.int(3, 6)})")
    if late:
        script.start_history()
    script.loop("len(SHAPES)", f"print(step, {answer}(model, recent, SHAPES[step]))")
    return [encode, answer]
