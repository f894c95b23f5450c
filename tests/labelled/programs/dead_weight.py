"""Programs that keep gradients or results after their last use, or free them in time."""

from .compose import FAULT, Script, program
from .small_models import language_batch, language_model
from .training import bookkeeping, start_bookkeeping, training

RESULTS = "dead.results"
GRADIENTS = "dead.gradients"


def gradients(draw, family, cleared=False):
    """Clears the gradients just before the backward pass, or with `cleared` after the step."""
    parts = training(draw, family, optimizer="torch.optim.SGD(model.parameters(), lr=0.01)", train_step=False,
                     heavy_parameters=True)  # fmt: skip
    script = parts.script
    clear = "optimizer.zero_grad(set_to_none=True)"
    is_late = not (cleared or draw.fixed)
    body = [
        f"inputs, targets = {parts.batch}(batch)",
        f"loss = {parts.loss}(model, inputs, targets)",
        clear if is_late else "",
        f"loss.backward(){FAULT}",
        "optimizer.step()",
        "" if is_late else clear,
        "return loss.item()",
    ]
    lines = "\n".join(f"    {line}" for line in body if line)
    script.function(f"def {parts.train}(model, optimizer, batch):\n{lines}")
    start_bookkeeping(script)
    script.loop(draw.int(8, 12), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    if cleared:
        return program(
            draw, script, "none (gradients cleared after the step)", "none", parts.family, near=GRADIENTS
        )
    return program(
        draw, script, "dead weight: gradients kept through the next forward pass", GRADIENTS, parts.family,
        sites=[parts.train], remedy="clear the gradients after the step", has_fix=True,
        bytes=parts.family.parameter_bytes,
    )  # fmt: skip


def results(draw, freed=False):
    """Keeps the scores of a step through the next one; with `freed` until its own end."""
    script = Script(draw, draw.choice(("Trains a language model.", "Fits a language model to random tokens.")))
    vocabulary, length, batch = draw.int(8192, 12288, 1024), 64, draw.batch(draw.int(40, 56, 8))
    script.constant("BATCH", batch)
    script.use("from model import build_model")
    read, train = draw.name(), draw.name()
    language_batch(script, read, vocabulary, length)
    source = language_model(vocabulary, 256, 2)
    source = source.replace("def forward(self, tokens):", "def forward(self, tokens, targets):")
    source = source.replace(
        "        return self.head(x)\n",
        f"        scores = self.head(x){FAULT}\n"
        "        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten()), scores\n",
    )
    step = (
        f"loss, scores = model(*{read}(BATCH))\n"
        "loss.backward()\noptimizer.step()\noptimizer.zero_grad(set_to_none=True)\n"
    )
    # The scores of the step before are printed while the GPU computes the next ones.
    kept = "scores[0, 0, :3].clone()" if draw.fixed else "scores"
    shown = "None if last is None else last.flatten()[:3].tolist()"
    keep = f"print(step, {shown})\nlast = {kept}.detach()\ndel loss, scores"
    script.do("model = build_model().to(DEVICE)\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)")
    if freed:
        lines = "\n".join(f"    {line}" for line in step.strip().split("\n"))
        script.function(f"def {train}(model, optimizer):\n{lines}\n    return loss.item(), scores[0, 0, :3].tolist()")
        script.loop(draw.int(8, 12), f"print(step, {train}(model, optimizer))")
        label, finding, facts = "none (results freed with their step)", "none", {"near": RESULTS}
    else:
        script.do("last = None")
        script.loop(draw.int(8, 12), step + keep)
        label, finding = "dead weight: scores kept through the next step", RESULTS
        facts = {"remedy": "keep only the scores that are printed", "has_fix": True}
        facts["bytes"] = batch * length * vocabulary * 4
    return program(draw, script, label, finding, files={"model.py": source}, sites=["forward", "main"], **facts)
