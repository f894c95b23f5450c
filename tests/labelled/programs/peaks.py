"""Programs whose peak comes from one temporary tensor, or from the start."""

from .compose import FAULT, Script, program
from .training import Parts, add_train_step, bookkeeping, start_bookkeeping, training

LARGE = "large temporaries at the peak: "


def logits(draw):
    """Casts the logits of a large vocabulary to float32 in the loss."""
    vocabulary, width = draw.int(24_000, 40_000, 1000), draw.choice((256, 384))
    length = draw.choice((128, 256))
    batch = draw.batch(2048 * draw.int(1, 2) // length)
    script = Script(draw, "Trains a language model.")
    script.use("from torch import nn", "from torch.nn import functional")
    script.constant("BATCH", batch)
    names = Parts(script, None, draw.name(), draw.name(), draw.name())
    script.function(
        f"""
        def $batch(batch):
            tokens = torch.randint({vocabulary}, (batch, {length + 1}), device=DEVICE)
            return tokens[:, :-1], tokens[:, 1:]
        """,
        batch=names.batch,
    )
    if draw.fixed:
        script.use("from torch.utils.checkpoint import checkpoint")
        script.function(
            """
            def part(head, hidden, targets):
                return functional.cross_entropy(head(hidden).float(), targets, reduction="sum")


            def $loss(model, inputs, targets):
                hidden, targets = model[:-1](inputs).flatten(0, 1), targets.flatten()
                total = 0.0
                for begin in range(0, len(targets), 256):
                    rows = slice(begin, begin + 256)
                    total = total + checkpoint(part, model[-1], hidden[rows], targets[rows], use_reentrant=False)
                return total / len(targets)
            """,
            loss=names.loss,
        )
    else:
        script.function(
            f"""
            def $loss(model, inputs, targets):
                outputs = model(inputs)
                outputs = outputs.float(){FAULT}
                return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
            """,
            loss=names.loss,
        )
    add_train_step(draw, names)
    parts = f"nn.Embedding({vocabulary}, {width}), nn.Linear({width}, {4 * width}), nn.GELU()"
    parts += f", nn.Linear({4 * width}, {width}), nn.Linear({width}, {vocabulary}, bias=False)"
    script.do(f"model = nn.Sequential({parts}).to(DEVICE, torch.bfloat16)")
    script.do("optimizer = torch.optim.SGD(model.parameters(), lr=0.01)")
    start_bookkeeping(script)
    script.loop(draw.int(5, 8), f"loss = {names.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return program(
        draw, script, LARGE + "logits cast to float32", "peak.temporary", sites=[names.loss],
        remedy="compute the loss in chunks", has_fix=True, bytes=4 * batch * length * vocabulary,
    )  # fmt: skip


def mask(draw):
    """Builds a mask of length times length in each step."""
    length, width = draw.int(7168, 10240, 512), draw.choice((128, 256))
    script = Script(draw, draw.choice(("Encodes a long document.", "Trains on long sequences.")))
    script.use("from torch import nn", "from torch.nn import functional")
    build, attend, train = draw.name(), draw.name(), draw.name()
    script.constant("LENGTH", draw.batch(length))
    fault = draw.choice(
        (
            "mask = torch.full((length, length), float('-inf'), device=DEVICE).triu(1)",
            "mask = torch.ones(length, length, device=DEVICE).tril().log()",
        )
    )
    script.function(f"def $build(length):\n    {fault}{FAULT}\n    return mask", build=build)
    how = "is_causal=True" if draw.fixed else f"attn_mask={build}(q.shape[2])"
    script.function(
        f"""
        def $attend(qkv, x):
            q, k, v = qkv(x).chunk(3, dim=-1)
            return functional.scaled_dot_product_attention(q, k, v, {how})
        """,
        attend=attend,
    )
    script.function(
        f"""
        def $train(qkv, optimizer):
            inputs = torch.randn(1, 2, LENGTH, {width // 2}, device=DEVICE)
            loss = $attend(qkv, inputs).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()
        """,
        train=train, attend=attend,
    )  # fmt: skip
    script.do(f"qkv = nn.Linear({width // 2}, {3 * width // 2}).to(DEVICE)")
    script.do("optimizer = torch.optim.Adam(qkv.parameters())")
    start_bookkeeping(script)
    script.loop(draw.int(6, 9), f"loss = {train}(qkv, optimizer)\n{bookkeeping(draw)}")
    return program(
        draw, script, LARGE + "a mask of length x length", "peak.temporary", sites=[build, attend],
        remedy="is_causal instead of a mask", has_fix=True, bytes=2 * 4 * draw.batch(length) ** 2,
    )  # fmt: skip


def broadcast(draw, family=None, capped=False):
    """Broadcasts to all pairs, or to one-hot vectors, in a metric."""
    parts = training(draw, family)
    script, score = parts.script, draw.name()
    kind = draw.choice(("pairs", "one_hot"))
    # Larger than all that training needs.
    wanted = parts.family.parameter_bytes * 12 + (draw.int(1024, 1536, 64) << 20)
    if kind == "pairs":
        width = draw.choice((32, 48, 64))
        rows = draw.batch(int((wanted / (8 * width)) ** 0.5))
        setup = f"points = torch.randn({rows}, {width}, device=DEVICE)"
        bad = "distances = (points[:, None] - points[None]).square().sum(dim=-1)"
        good, size = "distances = torch.cdist(points, points)", 8 * rows * rows * width
        result = "distances.mean().item()"
    else:
        classes = draw.int(6000, 9000, 500)
        rows = draw.batch(wanted // (12 * classes))
        setup = f"points = torch.randint({classes}, ({rows},), device=DEVICE)"
        bad = f"counts = functional.one_hot(points, {classes}).float().sum(dim=0)"
        good, size = f"counts = torch.bincount(points, minlength={classes})", 12 * rows * classes
        result = "counts.amax().item()"
    script.function(
        f"""
        @torch.no_grad()
        def $score():
            {setup}
            {good if draw.fixed else bad + FAULT}
            return {result}
        """,
        score=score,
    )
    start_bookkeeping(script)
    body = [f"loss = {parts.train}(model, optimizer, BATCH)", f"value = {score}()"]
    if not capped:
        body = draw.shuffled(body)
    script.loop(draw.int(5, 8), "\n".join([*body, bookkeeping(draw)]))
    label, finding = LARGE + f"a broadcast ({kind})", "peak.temporary"
    if capped:
        # Enough for training and for the first of two large tensors.
        script.limit(size * 3 // 4)
        label, finding = "oom: one temporary too large", "oom.temporary"
    return program(
        draw, script, label, finding, parts.family, sites=[score],
        remedy="avoid the temporary", has_fix=True, bytes=size,
    )  # fmt: skip


def loaded_twice(draw, family=None):
    """Loads a checkpoint on the GPU into a model that is already there, then runs inference."""
    parts = training(draw, family, optimizer=False, train_step=False, batch_scale=0.2, heavy_parameters=True)
    script, load, apply = parts.script, draw.name(), draw.name()
    script.use("import os", "import tempfile")
    script.main.clear()
    device = '"cpu"' if draw.fixed else "DEVICE"
    script.function(
        f"""
        def $load(path):
            model = build_model().to(DEVICE)
            state = torch.load(path, map_location={device}){FAULT}
            model.load_state_dict(state)
            return model.eval()
        """,
        load=load,
    )
    script.function(
        """
        @torch.no_grad()
        def $apply(model):
            inputs, targets = $batch(BATCH)
            return $loss(model, inputs, targets).item()
        """,
        apply=apply, batch=parts.batch, loss=parts.loss,
    )  # fmt: skip
    script.do(
        """
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "weights.pt")
            torch.save(build_model().state_dict(), path)
            model = $load(path)
        """,
        load=load,
    )
    start_bookkeeping(script)
    script.loop(draw.int(6, 9), f"loss = {apply}(model)\n{bookkeeping(draw)}")
    return program(
        draw, script, "peak only at start: a checkpoint loaded beside the model", "peak.start", parts.family,
        sites=[load], remedy="map_location=cpu", has_fix=True, bytes=parts.family.parameter_bytes,
    )  # fmt: skip


def warm_up(draw, family=None):
    """Runs one batch that is much larger than all later ones."""
    parts = training(draw, family)
    script, prepare = parts.script, draw.name()
    factor = draw.int(6, 9)
    script.function(
        f"""
        def $prepare(model):
            inputs, targets = $batch({factor} * BATCH)
            loss = $loss(model, inputs, targets){FAULT}
            loss.backward()
            model.zero_grad(set_to_none=True)
        """,
        prepare=prepare, batch=parts.batch, loss=parts.loss,
    )  # fmt: skip
    start_bookkeeping(script)
    if not draw.fixed:
        script.do(f"{prepare}(model)")
    script.loop(draw.int(6, 9), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return program(
        draw, script, "peak only at start: a large warm-up batch", "peak.start", parts.family,
        sites=[prepare, parts.loss], remedy="a smaller warm-up batch", has_fix=True,
    )  # fmt: skip


def statistics(draw, family=None):
    """Computes the mean and deviation of a whole dataset on the GPU before training."""
    parts = training(draw, family)
    script, prepare = parts.script, draw.name()
    columns = draw.choice((1024, 1536))
    rows = (parts.family.parameter_bytes * 16 + (draw.int(384, 640, 64) << 20)) // (4 * columns)
    pieces = 32 if draw.fixed else 1
    script.function(
        f"""
        def $prepare():
            means = []
            for _ in range({pieces}):
                data = torch.randn({rows // pieces}, {columns}, device=DEVICE){FAULT}
                means.append((data.mean(dim=0), data.std(dim=0)))
                del data
            return means
        """,
        prepare=prepare,
    )
    script.do(f"means = {prepare}()")
    start_bookkeeping(script)
    script.loop(draw.int(6, 9), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return program(
        draw, script, "peak only at start: statistics of a whole dataset", "peak.start", parts.family,
        sites=[prepare], remedy="compute in chunks", has_fix=True, bytes=4 * rows * columns,
    )  # fmt: skip
