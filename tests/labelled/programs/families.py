"""The models of the programs: `model.py`, and the functions of `train.py` that feed them."""

from dataclasses import dataclass

from .compose import fill

FAMILIES = ("mlp", "transformer", "conv", "attention", "recurrent")


@dataclass
class Family:
    """A model and its data. `batch_size` gives activations about as large as all other tensors."""

    name: str
    source: str
    # The body of the function that draws a batch, with its parameter `batch`.
    batch_body: str
    batch_size: int
    # float32 bytes of the parameters, about.
    parameter_bytes: int


HEAD = '''
"""The model."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
'''

# All models are blocks between a first and a last layer.
MODEL = """
class $model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = $first
        self.blocks = nn.ModuleList($block($width) for _ in range($layers))
        self.last = $last

    def forward(self, x):
        x = $enter
        for block in self.blocks:
            x = $apply
        return self.last($leave)


def build_model():
    return $model()
"""

BLOCKS = {
    "mlp": """
class $block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))
""",
    "transformer": """
class $block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, $heads, width // $heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))
""",
    "conv": """
class $block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(x + self.norm2(self.conv2(y)))
""",
    "attention": """
class $block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5
        return self.norm(x + torch.softmax(scores, dim=-1) @ self.value(x))
""",
    "recurrent": """
class $block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cell = nn.$cell(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        states, _ = self.cell(x)
        return self.norm(x + states)
""",
}


def tokens_body(vocabulary, length, classes, per_token):
    targets = f"(batch, {length})" if per_token else "(batch,)"
    return f"""
    inputs = torch.randint({vocabulary}, (batch, {length}), device=DEVICE)
    targets = torch.randint({classes}, {targets}, device=DEVICE)
    return inputs, targets"""


def draw_family(draw, name=None, heavy_parameters=False, layers=None):
    """Draws a family with its sizes."""
    name = name or draw.choice(FAMILIES)
    values = {
        "block": draw.choice(("Block", "Layer", "Stage", "Unit")),
        "model": draw.choice(("Model", "Net", "Network", "Encoder")),
        "heads": draw.choice((4, 8)),
        "cell": draw.choice(("LSTM", "GRU")),
    }
    classes = draw.choice((10, 32, 100))
    enter, leave = "self.first(x)", "x"
    if name == "mlp":
        width = draw.int(1536, 2048, 128) if heavy_parameters else draw.int(512, 1024, 128)
        layers = layers or draw.int(3, 5)
        inputs = draw.int(64, 512, 64)
        first, last = f"nn.Linear({inputs}, {width})", f"nn.Linear({width}, {classes})"
        body = f"""
    inputs = torch.randn(batch, {inputs}, device=DEVICE)
    targets = torch.randint({classes}, (batch,), device=DEVICE)
    return inputs, targets"""
        batch, parameters = 2 * width, 8 * width * width * layers
    elif name == "transformer":
        width = draw.int(768, 1024, 128) if heavy_parameters else draw.int(384, 640, 128)
        layers = layers or draw.int(2, 4)
        length, vocabulary = draw.choice((64, 96, 128)), draw.int(1000, 2000, 100)
        first, last = f"nn.Embedding({vocabulary}, {width})", f"nn.Linear({width}, {vocabulary})"
        body = tokens_body(vocabulary, length, vocabulary, per_token=True)
        batch, parameters = 2 * width // length, (12 * layers * width + 2 * vocabulary) * width
    elif name == "conv":
        width = draw.choice((32, 48))
        layers = layers or draw.int(2, 3)
        size, dense = 64, draw.int(1024, 2048, 256) * (2 if heavy_parameters else 1)
        first = f"nn.Conv2d(3, {width}, 3, stride=2, padding=1)"
        pixels = width * (size // 4) ** 2
        last = (
            f"nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear({pixels}, {dense}),"
            f" nn.ReLU(), nn.Linear({dense}, {classes}))"
        )
        body = f"""
    inputs = torch.randn(batch, 3, {size}, {size}, device=DEVICE)
    targets = torch.randint({classes}, (batch,), device=DEVICE)
    return inputs, targets"""
        batch, parameters = 24 * dense // 1024 * 2, pixels * dense + 18 * layers * width * width
    elif name == "attention":
        width, items = draw.choice((64, 128)), draw.int(60_000, 120_000, 5000) * (3 if heavy_parameters else 1)
        layers = layers or draw.int(2, 3)
        length = draw.choice((32, 48, 64))
        first, last = f"nn.Embedding({items}, {width})", f"nn.Linear({width}, {classes})"
        leave = "x.mean(dim=1)"
        body = tokens_body(items, length, classes, per_token=False)
        batch, parameters = items // (2 * length), items * width
    else:
        width = draw.int(768, 1024, 128) if heavy_parameters else draw.int(512, 768, 128)
        layers = layers or draw.int(2, 3)
        length, vocabulary = draw.choice((48, 64)), draw.int(2000, 4000, 200)
        first, last = f"nn.Embedding({vocabulary}, {width})", f"nn.Linear({width}, {vocabulary})"
        body = tokens_body(vocabulary, length, vocabulary, per_token=True)
        batch, parameters = 2 * width // length, (8 * layers * width + 2 * vocabulary) * width
    apply = "checkpoint(block, x, use_reentrant=False)" if draw.options.checkpoint else "block(x)"
    values |= {"width": width, "layers": layers, "first": first, "last": last}
    values |= {"enter": enter, "apply": apply, "leave": leave}
    source = "\n\n\n".join(fill(part, **values) for part in (HEAD, BLOCKS[name], MODEL)) + "\n"
    # Imports that this model does not use would only distract.
    if not draw.options.checkpoint:
        source = source.replace("from torch.utils.checkpoint import checkpoint\n", "")
    if "functional." not in source:
        source = source.replace("from torch.nn import functional\n", "")
    if "torch." not in source.split('"""\n', 1)[1].replace("torch.nn", "").replace("torch.utils", ""):
        source = source.replace("import torch\n", "")
    return Family(name, source, body, draw.batch(batch), 4 * parameters)
