"""Programs whose peak is, or is not, in a multi-tensor step of the optimizer.

`foreach`, the default on CUDA, computes on all parameters at once and so needs temporaries as large
as all of them. `fused=True` needs none, `foreach=False` those of one parameter.
"""

from .compose import program
from .states import mark
from .training import add_train_step, bookkeeping, start_bookkeeping, training

# Optimizers with such temporaries, and the remedy.
OPTIMIZERS = {
    "adamw": ("AdamW(model.parameters(), lr=1e-3)", "fused=True"),
    "adam": ("Adam(model.parameters(), lr=3e-4, weight_decay=0.01)", "fused=True"),
    "sgd": ("SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)", "fused=True"),
    "rmsprop": ("RMSprop(model.parameters(), lr=1e-4)", "foreach=False"),
}
# Healthy programs that resemble them: optimizer, batch scale and layers (None: the default).
NEAR = {
    "fused": ("AdamW(model.parameters(), lr=1e-3, fused=True)", 0.03, None),
    "activations": ("AdamW(model.parameters(), lr=1e-3)", 8, None),
    "plain": ("SGD(model.parameters(), lr=0.01)", 0.1, None),
    "few": ("Adam(model.parameters(), lr=3e-4)", 6, 1),
}
KINDS = {
    "fused": "a fused optimizer",
    "activations": "a multi-tensor step, the peak in the backward pass",
    "plain": "SGD without momentum",
    "few": "a multi-tensor step of few tensors",
}
# Enough layers that the parameters are many tensors.
LAYERS = {"mlp": 8, "transformer": 7, "recurrent": 7, "attention": 8, "conv": 8}


def with_argument(optimizer, argument):
    name = argument.partition("=")[0]
    return optimizer if f"{name}=" in optimizer else optimizer[:-1] + f", {argument})"


def parts_of(draw, family, optimizer, batch_scale, layers, late):
    """Returns the script of a training program whose faulty line is the optimizer's step."""
    parts = training(
        draw, family, f"torch.optim.{optimizer}", batch_scale=batch_scale, layers=layers, train_step=False
    )
    script = parts.script
    add_train_step(draw, parts)
    if late:
        script.start_history()
    start_bookkeeping(script)
    script.loop(draw.int(10, 14), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return parts


def temporaries(draw, family="mlp", optimizer="adamw", late=False):
    """Trains with a small batch, so that the optimizer's temporaries are at the peak."""
    text, remedy = OPTIMIZERS[optimizer]
    if draw.fixed:
        text = with_argument(text, remedy)
    parts = parts_of(draw, family, text, 0.03, LAYERS[family], late)
    parts.script.functions[-1] = mark(parts.script.functions[-1], "optimizer.step()")
    return program(
        draw, parts.script, f"large temporaries at the peak: a multi-tensor step ({text.partition('(')[0]})",
        "peak.optimizer_step", parts.family, sites=[parts.train], remedy=remedy, has_fix=True,
        bytes=parts.family.parameter_bytes,
    )  # fmt: skip


def near(draw, family="mlp", kind="fused", late=False):
    """Trains without such temporaries at the peak."""
    text, batch_scale, layers = NEAR[kind]
    if draw.fixed:
        text = with_argument(text, "fused=True")
    if kind in ("fused", "plain"):
        layers = LAYERS[family]
    parts = parts_of(draw, family, text, batch_scale, layers, late)
    return program(
        draw, parts.script, f"none ({KINDS[kind]})", "none", parts.family, near="peak.optimizer_step", has_fix=True
    )
