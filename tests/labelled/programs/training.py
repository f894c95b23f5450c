"""The parts that most programs share: batches, losses, optimizers and training steps."""

from dataclasses import dataclass

from .compose import Script
from .families import draw_family

TITLES = ("Trains a model.", "A training script.", "An experiment.", "Fits a model to random data.")


@dataclass
class Parts:
    """A script with its functions' names."""

    script: Script
    family: object
    # Names of functions.
    batch: str
    loss: str
    train: str

    @property
    def batch_size(self):
        return self.family.batch_size


def training(draw, family=None, optimizer=None, batch_scale=1.0, train_step=True, constant=True, **sizes):
    """Returns a script with a model, an optimizer and a training step, but no loop."""
    family = draw_family(draw, family, **sizes)
    family.batch_size = max(1, int(family.batch_size * batch_scale))
    script = Script(draw, draw.choice(TITLES))
    script.use("from torch.nn import functional", "from model import build_model")
    if constant:
        script.constant("BATCH", family.batch_size)
    parts = Parts(script, family, draw.name(), draw.name(), draw.name())
    script.function("def $batch(batch):" + family.batch_body, batch=parts.batch)
    script.function(
        """
        def $loss(model, inputs, targets):
            outputs = model(inputs)
            return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
        """,
        loss=parts.loss,
    )
    if train_step:
        add_train_step(draw, parts)
    script.do("model = build_model().to(DEVICE)")
    if optimizer is not False:
        optimizer = optimizer or draw.choice(OPTIMIZERS)
        script.do("optimizer = $optimizer", optimizer=optimizer)
    return parts


OPTIMIZERS = (
    "torch.optim.AdamW(model.parameters(), lr=1e-3)",
    "torch.optim.Adam(model.parameters(), lr=3e-4)",
    "torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)",
)


def add_train_step(draw, parts, result=None):
    """Adds the training step, which returns a number or a detached tensor."""
    clear = "optimizer.zero_grad(set_to_none=True)"
    first, last = draw.shuffled((clear, ""))
    result = result or draw.choice(("loss.item()", "float(loss.detach())"))
    body = [
        first,
        f"inputs, targets = {parts.batch}(batch)",
        f"loss = {parts.loss}(model, inputs, targets)",
        "loss.backward()",
        "optimizer.step()",
        last,
        f"return {result}",
    ]
    lines = "\n".join(f"    {line}" for line in body if line)
    parts.script.function(f"def {parts.train}(model, optimizer, batch):\n{lines}")


def bookkeeping(draw, value="loss"):
    """Returns harmless statements for the end of a step, which keep numbers only."""
    lines = [
        f'print(f"{{step}}: {{{value}:.4f}}")',
        f"best = min(best, {value})",
        f"losses.append({value})",
        f"average = {value} if average is None else 0.9 * average + 0.1 * {value}",
    ]
    return "\n".join(draw.rng.sample(lines, draw.int(1, 3)))


def start_bookkeeping(script):
    script.do("losses, best, average = [], float('inf'), None")
