"""Programs with a failed step, whose exception keeps its activations alive if it is kept."""

from .compose import FAULT, MIB, Script, program
from .small_models import language_batch, language_loss, language_model
from .training import bookkeeping, start_bookkeeping, training

FINDING = "kept.exception"
LABEL = "kept: the exception of a failed step keeps its activations"


def batch_finder(draw):
    """Tries a batch that is too large, and keeps the error."""
    script = Script(draw, draw.choice(("Finds a batch size and trains with it.", "Trains with the largest batch.")))
    vocabulary, width, layers, length = 16_384, 512, 2, 64
    batch = draw.batch(draw.int(24, 28, 2))
    tokens = batch * length
    # Sizes in bytes: all parameters, the activations of the blocks, the logits of a batch.
    parameters = 4 * width * (2 * vocabulary + 8 * width * layers)
    activations, logits = 4 * 10 * width * layers * tokens, 4 * vocabulary * tokens
    script.constant("BATCH_SIZES", f"({8 * batch}, {batch})")
    read, loss, train, find = (draw.name() for _ in range(4))
    language_batch(script, read, vocabulary, length)
    language_loss(script, loss, FAULT)
    script.function(
        """
        def $train(model, optimizer, batch):
            inputs, targets = $read(batch)
            loss = $loss(model, inputs, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()
        """,
        train=train, read=read, loss=loss,
    )  # fmt: skip
    kept = "str(error)" if draw.fixed else "error"
    script.function(
        f"""
        def $find(model, optimizer, failures):
            for batch in BATCH_SIZES:
                try:
                    $train(model, optimizer, batch)
                    return batch
                except torch.cuda.OutOfMemoryError as error:
                    failures.append({kept})
            raise SystemExit("cannot train: no batch size fits")
        """,
        find=find, train=train,
    )  # fmt: skip
    # Fits the kept activations and a step of the small batch, but not the logits of the large one.
    script.limit(2 * parameters + 9 * activations + 3 * logits + 240 * MIB)
    script.do(
        f"""
        model = build_model().to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        failures = []
        batch = {find}(model, optimizer, failures)
        """
    )
    start_bookkeeping(script)
    script.loop(draw.int(10, 14), f"loss = {train}(model, optimizer, batch)\n{bookkeeping(draw)}")
    script.do('print(f"{len(failures)} batch sizes failed, trained with {batch}")')
    return program(
        draw, script, LABEL, FINDING, files={"model.py": language_model(vocabulary, width, layers)},
        sites=[train, find, "forward"], has_fix=True, bytes=8 * activations,
        remedy="keep the message of the error",
    )  # fmt: skip


def failed_step(draw, family, only_message=False):
    """A step with a bad value raises an error after its forward pass, and the error is kept."""
    parts = training(draw, family, train_step=False, batch_scale=4 if family == "conv" else 1.5)
    script, check = parts.script, draw.name()
    mark(parts)
    script.constant("BAD_STEP", draw.int(2, 4))
    script.function(
        """
        def $check(loss, step):
            if not torch.isfinite(loss):
                raise FloatingPointError(f"the loss of step {step} is {loss.item()}")
        """,
        check=check,
    )
    script.function(
        """
        def $train(model, optimizer, batch, step):
            inputs, targets = $read(batch)
            if step == BAD_STEP:
                # As a damaged file.
                inputs[0] = float("nan")
            loss = $loss(model, inputs, targets)
            $check(loss, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()
        """,
        train=parts.train, read=parts.batch, loss=parts.loss, check=check,
    )  # fmt: skip
    kept = "str(error)" if only_message or draw.fixed else "error"
    script.do("losses, problems = [], []")
    script.loop(
        draw.int(12, 15),
        f"""
        try:
            loss = {parts.train}(model, optimizer, BATCH, step)
            losses.append(loss)
        except FloatingPointError as error:
            problems.append({kept})
        """,
    )
    script.do('print(f"{len(losses)} steps, problems: {problems}")')
    if only_message:
        return program(draw, script, "none (only the message of an error is kept)", "none", parts.family, near=FINDING)
    return program(
        draw, script, LABEL, FINDING, parts.family, sites=[parts.train, "forward"], has_fix=True,
        remedy="keep the message of the error",
    )  # fmt: skip


def mark(parts):
    """Marks the forward pass in the loss as the line at fault."""
    line = "outputs = model(inputs)"
    parts.script.functions = [
        text.replace(line, line + FAULT) if f"def {parts.loss}(" in text else text for text in parts.script.functions
    ]


def best_sample(draw, family):
    """Keeps the outputs of the best step for a later picture."""
    parts = training(draw, family, train_step=False, batch_scale=4)
    script = parts.script
    script.function(
        """
        def $train(model, optimizer, batch, best):
            inputs, targets = $read(batch)
            outputs = model(inputs)
            loss = functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            value = loss.item()
            if best is None or value < best[0]:
                best = value, outputs.detach()
            return best
        """,
        train=parts.train, read=parts.batch,
    )  # fmt: skip
    script.functions = [text for text in script.functions if f"def {parts.loss}(" not in text]
    script.do("best, problems = None, []")
    script.loop(
        draw.int(12, 15),
        f"""
        try:
            best = {parts.train}(model, optimizer, BATCH, best)
        except FloatingPointError as error:
            problems.append(str(error))
        """,
    )
    script.do('print(f"best loss: {best[0]:.4f}, outputs {tuple(best[1].shape)}, {len(problems)} problems")')
    return program(
        draw, script, "none (the outputs of the best step, kept for later)", "none", parts.family, near=FINDING
    )
