"""Programs without a memory problem."""

from dataclasses import replace

from .compose import Script, program
from .growth import DECODER
from .training import OPTIMIZERS, add_train_step, bookkeeping, start_bookkeeping, training


def healthy(draw, script, kind, family=None, files=None, conf=""):
    return program(draw, script, f"none ({kind})", "none", family, files, conf=conf)


def train(draw, family=None):
    """Plain training."""
    parts = training(draw, family)
    start_bookkeeping(parts.script)
    parts.script.loop(draw.int(6, 10), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return healthy(draw, parts.script, "training", parts.family)


def inference(draw, family=None):
    """Inference with `no_grad` or `inference_mode`; results go to the host."""
    parts = training(draw, family, optimizer=False, train_step=False)
    script, apply = parts.script, draw.name()
    script.function(
        f"""
        @torch.{draw.choice(("no_grad", "inference_mode"))}()
        def $apply(model):
            inputs, _ = $batch(BATCH)
            return model(inputs).argmax(dim=-1).cpu()
        """,
        apply=apply, batch=parts.batch,
    )  # fmt: skip
    script.functions = [it for it in script.functions if f"def {parts.loss}(" not in it]
    script.imports.remove("from torch.nn import functional")
    script.do("model.eval()\nresults = []")
    script.loop(draw.int(10, 14), f"results.append({apply}(model))\nprint(step, results[-1].float().mean())")
    return healthy(draw, script, "inference", parts.family)


def mixed_precision(draw, family=None):
    """Training with autocast."""
    parts = training(draw, family, batch_scale=1.3)
    kind = draw.choice(("bfloat16", "float16"))
    functions = parts.script.functions
    for index, text in enumerate(functions):
        if f"def {parts.loss}(" in text:
            body = text.replace("    outputs = model(inputs)", (
                f"    with torch.autocast(device_type=DEVICE, dtype=torch.{kind}):\n        outputs = model(inputs)"
            ))  # fmt: skip
            functions[index] = body.replace("outputs.flatten(0, -2)", "outputs.float().flatten(0, -2)")
        elif kind == "float16" and "loss.backward()" in text:
            functions[index] = text.replace("loss.backward()", "scaler.scale(loss).backward()").replace(
                "optimizer.step()", "scaler.step(optimizer)\n    scaler.update()"
            )
    if kind == "float16":
        parts.script.constants.append("scaler = torch.amp.GradScaler(DEVICE)")
    start_bookkeeping(parts.script)
    parts.script.loop(draw.int(6, 9), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return healthy(draw, parts.script, "mixed precision", parts.family)


def accumulation(draw, family=None):
    """Training with gradients of several micro-batches."""
    parts = training(draw, family, train_step=False)
    script, train = parts.script, draw.name()
    count = draw.int(2, 4)
    script.function(
        f"""
        def $train(model, optimizer):
            total = 0.0
            for _ in range({count}):
                inputs, targets = $batch(BATCH)
                loss = $loss(model, inputs, targets) / {count}
                loss.backward()
                total += loss.item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return total
        """,
        train=train, batch=parts.batch, loss=parts.loss,
    )  # fmt: skip
    start_bookkeeping(script)
    script.loop(draw.int(4, 6), f"loss = {train}(model, optimizer)\n{bookkeeping(draw)}")
    return healthy(draw, script, "gradient accumulation", parts.family)


def checkpointing(draw, family=None):
    """Training with checkpointed blocks."""
    draw.options = replace(draw.options, checkpoint=True)
    parts = training(draw, family, batch_scale=2, layers=draw.int(4, 6))
    start_bookkeeping(parts.script)
    parts.script.loop(draw.int(5, 7), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return healthy(draw, parts.script, "checkpointing", parts.family)


def variable_lengths(draw, family=None):
    """Batches of changing sizes with expandable segments."""
    parts = training(draw, family)
    script = parts.script
    sizes = [max(1, int(parts.batch_size * draw.rng.uniform(0.4, 1.0))) for _ in range(draw.int(8, 11))]
    script.constant("SIZES", sizes)
    start_bookkeeping(script)
    script.loop("len(SIZES)", f"loss = {parts.train}(model, optimizer, SIZES[step])\n{bookkeeping(draw)}")
    return healthy(draw, script, "variable lengths, expandable segments", parts.family, conf="expandable_segments:True")


def growth_that_stops(draw, family=None):
    """Memory grows in the first steps, until a table for each phase is there."""
    parts = training(draw, family)
    script, look_up = parts.script, draw.name()
    phases, rows = draw.int(3, 4), draw.int(4096, 8192, 512)
    script.function(
        f"""
        def $look_up(known, phase):
            if phase not in known:
                known[phase] = torch.randn({rows}, 1024, device=DEVICE)
            return known[phase].mean().item()
        """,
        look_up=look_up,
    )
    start_bookkeeping(script)
    script.do("known = {}")
    body = draw.shuffled(
        (f"loss = {parts.train}(model, optimizer, BATCH)", f"scale = {look_up}(known, step % {phases})")
    )
    script.loop(draw.int(11, 14), "\n".join([*body, bookkeeping(draw)]))
    return healthy(draw, script, "growth that stops after the first steps", parts.family)


def bounded_cache(draw, family=None):
    """A cache of recent features with a maximum length."""
    parts = training(draw, family)
    script, apply = parts.script, draw.name()
    script.use("import collections")
    script.function(
        """
        @torch.no_grad()
        def $apply(model, recent):
            inputs, _ = $batch(BATCH)
            recent.append((inputs, model(inputs)))
            return recent[0][1].float().mean().item()
        """,
        apply=apply, batch=parts.batch,
    )  # fmt: skip
    start_bookkeeping(script)
    script.do(f"recent = collections.deque(maxlen={draw.int(2, 3)})")
    body = draw.shuffled((f"loss = {parts.train}(model, optimizer, BATCH)", f"value = {apply}(model, recent)"))
    script.loop(draw.int(10, 12), "\n".join([*body, bookkeeping(draw)]))
    return healthy(draw, script, "a bounded cache", parts.family)


def averaged_model(draw, family=None):
    """Training with a moving average of the parameters."""
    parts = training(draw, family)
    script, update = parts.script, draw.name()
    script.use("import copy")
    script.function(
        """
        @torch.no_grad()
        def $update(averaged, model):
            for old, new in zip(averaged.parameters(), model.parameters()):
                old.lerp_(new, 0.01)
        """,
        update=update,
    )
    start_bookkeeping(script)
    script.do("averaged = copy.deepcopy(model).requires_grad_(False)")
    train = f"loss = {parts.train}(model, optimizer, BATCH)"
    script.loop(draw.int(6, 9), f"{train}\n{update}(averaged, model)\n{bookkeeping(draw)}")
    return healthy(draw, script, "a moving average of the model", parts.family)


def evaluation(draw, family=None):
    """Training in epochs with an evaluation after each; losses become numbers."""
    parts = training(draw, family)
    script, evaluate = parts.script, draw.name()
    script.function(
        """
        @torch.no_grad()
        def $evaluate(model):
            model.eval()
            total = 0.0
            for _ in range(2):
                inputs, targets = $batch(BATCH)
                total += $loss(model, inputs, targets).item()
            model.train()
            return total / 2
        """,
        evaluate=evaluate, batch=parts.batch, loss=parts.loss,
    )  # fmt: skip
    start_bookkeeping(script)
    train = f"for _ in range(2):\n    loss = {parts.train}(model, optimizer, BATCH)"
    script.loop(draw.int(3, 5), f"{train}\nvalue = {evaluate}(model)\n{bookkeeping(draw, 'value')}")
    return healthy(draw, script, "evaluation between epochs", parts.family)


def generation(draw, family=None):
    """Text generation whose caches end with their request."""
    script = Script(draw, "Generates text.")
    width, layers, length = draw.choice((384, 512)), draw.int(2, 3), draw.int(256, 512, 32)
    model = DECODER.strip("\n").replace("WIDTH", str(width)).replace("LAYERS", str(layers))
    script.use("from model import Decoder")
    script.constant("BATCH", draw.batch(draw.choice((8, 12))))
    generate = draw.name()
    script.function(
        f"""
        @torch.no_grad()
        def $generate(model):
            token, past = model(torch.randint(1000, (BATCH, {length}), device=DEVICE), None)
            for _ in range({draw.int(4, 6)}):
                token, past = model(token.argmax(dim=-1, keepdim=True), past)
            return token.argmax(dim=-1).tolist()
        """,
        generate=generate,
    )
    script.do("model = Decoder().to(DEVICE).eval()")
    script.loop(draw.int(7, 10), f"print(step, {generate}(model)[:4])")
    return healthy(draw, script, "text generation", files={"model.py": model})


def gradient_reuse(draw, family=None):
    """Training with gradients clipped, and a fused or plain optimizer."""
    parts = training(draw, family, optimizer=OPTIMIZERS[draw.int(0, 1)], train_step=False)
    add_train_step(draw, parts)
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    optimizer.step()"
    parts.script.functions[-1] = parts.script.functions[-1].replace("optimizer.step()", clip)
    start_bookkeeping(parts.script)
    parts.script.loop(draw.int(6, 9), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return healthy(draw, parts.script, "training with clipped gradients", parts.family)
