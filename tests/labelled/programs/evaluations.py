"""Programs with evaluations between epochs, which need more memory than training, or less."""

from .compose import FAULT, Script, indent, program
from .small_models import language_batch, language_loss, language_model
from .training import training

FINDING = "peak.evaluation"
LABEL = "peak: evaluation holds more than training"


def epochs(draw, script, train, evaluate):
    """Adds epochs of training steps, each reported, with an evaluation after each epoch."""
    steps = draw.int(5, 7)
    body = f"losses.append({train})"
    if draw.annotates:
        body = 'with torch.profiler.record_function(f"step {step}"):\n' + indent(body)
    body += "\nreport(step)"
    script.do("losses = []")
    script.main.append(
        f"for epoch in range({draw.int(3, 4)}):\n"
        f"    for step in range(epoch * {steps}, epoch * {steps} + {steps}):\n"
        + indent(body, 8)
        + f"\n    print(epoch, losses[-1], {evaluate})"
    )


def kept_graphs(draw, family):
    """Evaluates with gradients, and keeps the losses of all batches until the end."""
    parts = training(draw, family)
    script, evaluate = parts.script, draw.name()
    script.constant("EVALUATION_BATCHES", draw.int(4, 5))
    added = f"losses.append($loss(model, inputs, targets){'.cpu()' if draw.fixed else ''})"
    script.function(
        ("@torch.no_grad()\n" if draw.fixed else "")
        + "def $evaluate(model, batch):\n"
        "    model.eval()\n"
        "    losses = []\n"
        "    for _ in range(EVALUATION_BATCHES):\n"
        "        inputs, targets = $read(batch)\n"
        f"        {added}{FAULT}\n"
        "    model.train()\n"
        "    return torch.stack(losses).mean().item()",
        evaluate=evaluate, read=parts.batch, loss=parts.loss,
    )  # fmt: skip
    epochs(draw, script, f"{parts.train}(model, optimizer, BATCH)", f"{evaluate}(model, BATCH)")
    return program(
        draw, script, LABEL, FINDING, parts.family, sites=[evaluate, parts.loss, "forward"], has_fix=True,
        remedy="evaluate without gradients",
    )  # fmt: skip


def gathered_scores(draw):
    """Evaluates without gradients, and concatenates the outputs of all batches on the GPU."""
    script = Script(draw, draw.choice(("Trains a language model.", "Fits a small language model.")))
    vocabulary, width, layers, length = draw.int(6144, 8192, 512), 512, 2, 64
    batch, batches = draw.batch(draw.int(14, 16)), draw.int(11, 13)
    script.constant("BATCH", batch)
    script.constant("EVALUATION_BATCHES", batches)
    read, loss, train, evaluate = (draw.name() for _ in range(4))
    language_batch(script, read, vocabulary, length)
    language_loss(script, loss)
    script.function(
        """
        def $train(model, optimizer):
            loss = $loss(model, *$read(BATCH))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss.item()
        """,
        train=train, read=read, loss=loss,
    )  # fmt: skip
    script.function(
        f"""
        @torch.no_grad()
        def $evaluate(model):
            outputs, wanted = [], []
            for _ in range(EVALUATION_BATCHES):
                inputs, targets = $read(BATCH)
                outputs.append(model(inputs).flatten(0, 1){".cpu()" if draw.fixed else ""}){FAULT}
                wanted.append(targets.flatten(){".cpu()" if draw.fixed else ""})
            outputs, wanted = torch.cat(outputs), torch.cat(wanted)
            return (outputs.argmax(dim=-1) == wanted).float().mean().item()
        """,
        evaluate=evaluate, read=read,
    )  # fmt: skip
    script.do("model = build_model().to(DEVICE)\noptimizer = torch.optim.Adam(model.parameters(), lr=1e-3)")
    epochs(draw, script, f"{train}(model, optimizer)", f"{evaluate}(model)")
    return program(
        draw, script, LABEL, FINDING, files={"model.py": language_model(vocabulary, width, layers)},
        sites=[evaluate, "forward"], has_fix=True, bytes=2 * 4 * vocabulary * batch * length * batches,
        remedy="move the outputs of each batch to the CPU",
    )  # fmt: skip


def small_evaluation(draw, family, larger=1):
    """Evaluates without gradients, maybe with a larger batch, and needs less than training."""
    parts = training(draw, family)
    script, evaluate = parts.script, draw.name()
    script.constant("EVALUATION_BATCHES", draw.int(4, 6))
    script.function(
        """
        @torch.no_grad()
        def $evaluate(model, batch):
            model.eval()
            losses = []
            for _ in range(EVALUATION_BATCHES):
                inputs, targets = $read(batch)
                losses.append($loss(model, inputs, targets))
            model.train()
            return torch.stack(losses).mean().item()
        """,
        evaluate=evaluate, read=parts.batch, loss=parts.loss,
    )  # fmt: skip
    size = "BATCH" if larger == 1 else f"{larger} * BATCH"
    epochs(draw, script, f"{parts.train}(model, optimizer, BATCH)", f"{evaluate}(model, {size})")
    label = "with a larger batch" if larger > 1 else "without gradients"
    return program(
        draw, script, f"none (evaluation {label}, below the peak of training)", "none", parts.family, near=FINDING
    )
