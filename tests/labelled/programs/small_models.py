"""Models of given sizes, for programs whose memory must have a known proportion."""

LANGUAGE_MODEL = '''
"""A small language model."""

from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build_model():
    return LanguageModel()
'''


def language_model(vocabulary, width, layers):
    """Returns the source of a language model without attention."""
    values = {"VOCABULARY": vocabulary, "WIDTH": width, "LAYERS": layers}
    source = LANGUAGE_MODEL.strip("\n") + "\n"
    for name, value in values.items():
        source = source.replace(name, str(value))
    return source


def language_batch(script, name, vocabulary, length):
    """Adds the function that draws a batch of tokens and their successors."""
    script.function(
        f"""
        def $name(batch):
            tokens = torch.randint({vocabulary}, (batch, {length + 1}), device=DEVICE)
            return tokens[:, :-1], tokens[:, 1:]
        """,
        name=name,
    )


def language_loss(script, name, mark=""):
    """Adds the function that computes the loss of a batch."""
    script.use("from torch.nn import functional", "from model import build_model")
    script.function(
        f"""
        def $name(model, inputs, targets):
            outputs = model(inputs){mark}
            return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
        """,
        name=name,
    )
