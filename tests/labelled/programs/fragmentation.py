"""Programs with fragmentation, and programs that recreate segments too often."""

from .compose import FAULT, MIB, Script, program
from .training import bookkeeping, start_bookkeeping, training

NAMES = {"serve": "Serves requests.", "shards": "Prepares features.", "layers": "Prunes an ensemble."}


def alternating(draw, story=None, prefix="oom: fragmentation"):
    """One large block is freed, split into pieces, and every other piece is freed.

    The pieces that stay pin the segment. A request of several pieces then fails under the cap,
    although all free bytes together are more than it needs.
    """
    story = story or draw.choice(NAMES)
    script = Script(draw, NAMES[story])
    piece, count, factor = draw.int(48, 72, 8), 2 * draw.int(9, 13), draw.int(3, 5)
    script.constant("PIECES", count)
    script.constant("PIECE_BYTES", f"{piece} << 20")
    begin, add, drop, grow = (draw.name() for _ in range(4))
    if story == "serve":
        begin_body = "profile = torch.empty(PIECES * PIECE_BYTES, dtype=torch.uint8, device=DEVICE)\nprofile.fill_(0)"
        add_body = "return torch.zeros(2, PIECE_BYTES // 4, dtype=torch.float16, device=DEVICE)"
        grow_body = f"return torch.zeros({factor} * PIECE_BYTES // 2, dtype=torch.float16, device=DEVICE)"
    elif story == "shards":
        begin_body = "raw = torch.randn(PIECES, PIECE_BYTES // 4, device=DEVICE)\nprint(raw.mean().item())"
        add_body = "return torch.rand(PIECE_BYTES // 4096, 1024, device=DEVICE)"
        grow_body = f"return torch.rand({factor} * PIECE_BYTES // 4096, 1024, device=DEVICE)"
    else:
        begin_body = "bank = torch.randn(PIECES, PIECE_BYTES // 4, device=DEVICE)\nprint(bank.std().item())"
        add_body = "return torch.nn.Linear(1024, PIECE_BYTES // 4096, bias=False, device=DEVICE)"
        grow_body = f"return torch.nn.Linear(1024, {factor} * PIECE_BYTES // 4096, bias=False, device=DEVICE)"
    grow_body = draw_indent(grow_body + FAULT)
    script.function(f"def $begin():\n{draw_indent(begin_body)}", begin=begin)
    script.function(f"def $add(number):\n{draw_indent(add_body)}", add=add)
    script.function(f"def $grow():\n{grow_body}", grow=grow)
    script.function(
        """
        def $drop(live):
            for number in list(live)[$first::2]:
                del live[number]
        """,
        drop=drop, first=draw.int(0, 1),
    )  # fmt: skip
    script.limit((count * piece + factor * piece // 2) * MIB)
    script.do("$begin()\nreport(0)\nlive = {}", begin=begin)
    script.do("for number in range(PIECES):\n    live[number] = $add(number)", add=add)
    script.do("report(1)\n$drop(live)\nreport(2)", drop=drop)
    for number in range(draw.int(0, 2)):
        script.do(f"small_{number} = torch.zeros({draw.int(200, 900)}, 256, device=DEVICE)")
    script.do("live[-1] = $grow()\nreport(3)\nprint(len(live))", grow=grow)
    return program(
        draw, script, f"{prefix} ({story})", "oom.fragmentation", sites=[grow, add],
        remedy="expandable_segments:True", bytes=factor * piece * MIB,
    )  # fmt: skip


def draw_indent(text):
    return "\n".join(f"    {line}" for line in text.split("\n"))


def near_failure(draw, order=None):
    """Batches of changing lengths under a cap: requests succeed after a release of segments."""
    order = order or draw.choice(("growing", "shuffled"))
    script = Script(draw, draw.choice(("Embeds documents.", "Scores sequences.", "Runs a model over a dataset.")))
    script.use("from torch import nn")
    width, start = draw.choice((512, 768, 1024)), draw.int(9000, 12000, 500)
    count = draw.int(8, 11)
    lengths = [start + int(start * 0.11) * index for index in range(count)]
    peak = draw.batch(lengths[-1]) * width * 4 * 10
    script.constant("LENGTHS", [draw.batch(it) for it in (draw.shuffled(lengths) if order == "shuffled" else lengths)])
    embed, score = draw.name(), draw.name()
    script.function(
        f"""
        @torch.no_grad()
        def $embed(model, length):
            inputs = torch.randn(length, {width}, device=DEVICE)
            outputs = model(inputs){FAULT}
            return $score(outputs)
        """,
        embed=embed, score=score,
    )  # fmt: skip
    script.function("def $score(outputs):\n    return outputs.mean().item()", score=score)
    # Both wide activations and two narrow tensors live at the peak: 10 units of length * width.
    script.limit(int(peak * 1.45) + 12 * width * width * 4)
    script.do(
        f"model = nn.Sequential(nn.Linear({width}, {4 * width}), nn.GELU(), nn.Linear({4 * width}, {width})).to(DEVICE)"
    )
    script.do("means = []")
    script.loop("len(LENGTHS)", f"means.append({embed}(model, LENGTHS[step]))")
    return program(
        draw, script, f"fragmentation: nearly a failure ({order} lengths)", "fragmentation.near_failure",
        sites=[embed], remedy="expandable_segments:True",
    )  # fmt: skip


def emptied_caches(draw, family=None, place=None):
    """Calls `empty_cache` in every step."""
    parts = training(draw, family)
    script, tidy, evaluate = parts.script, draw.name(), draw.name()
    place = place or draw.choice(("train", "evaluate"))
    script.use("import gc")
    empty = "return gc.collect()" if draw.fixed else f"torch.cuda.empty_cache(){FAULT}"
    script.function(f"def $tidy():\n    gc.collect()\n    {empty}", tidy=tidy)
    start_bookkeeping(script)
    steps = draw.int(6, 9)
    if place == "train":
        script.loop(steps, f"loss = {parts.train}(model, optimizer, BATCH)\n{tidy}()\n{bookkeeping(draw)}")
    else:
        script.function(
            """
            @torch.no_grad()
            def $evaluate(model):
                total = 0.0
                for _ in range(3):
                    inputs, targets = $batch(BATCH)
                    total += $loss(model, inputs, targets).item()
                    del inputs, targets
                    $tidy()
                return total / 3
            """,
            evaluate=evaluate, batch=parts.batch, loss=parts.loss, tidy=tidy,
        )  # fmt: skip
        loss = f"loss = {parts.train}(model, optimizer, BATCH)"
        script.loop(steps - 2, f"{loss}\nvalue = {evaluate}(model)\n{bookkeeping(draw, 'value')}")
    return program(
        draw, script, "segments recreated: empty_cache in each step", "segments.empty_cache", parts.family,
        sites=[tidy, evaluate if place == "evaluate" else "main"], remedy="remove empty_cache", has_fix=True,
    )  # fmt: skip


def recreated_segments(draw):
    """Blocks above max_split_size serve only requests of nearly their size.

    Under the cap, batches of three sizes therefore release each other's segments in every step.
    """
    script = Script(draw, "Runs a model over batches of three sizes.")
    script.use("from torch import nn")
    width, small = draw.choice((512, 768, 1024)), draw.batch(draw.int(8000, 12000, 500))
    apply = draw.name()
    script.function(
        f"""
        @torch.no_grad()
        def $apply(model, length):
            inputs = torch.randn(length, {width}, device=DEVICE)
            return model(inputs).mean().item(){FAULT}
        """,
        apply=apply,
    )
    layer = f"nn.Linear({width}, {4 * width}), nn.GELU(), nn.Linear({4 * width}, {width})"
    # The largest batch needs about 20 units of `small * width` floats, all three together 45.
    script.limit(small * width * 4 * 24 + 20 * width * width * 4 + (64 << 20))
    script.do(f"model = nn.Sequential({layer}, {layer}).to(DEVICE)")
    script.loop(draw.int(9, 12), f"print({apply}(model, {small} + {small // 2} * (step % 3)))")
    return program(
        draw, script, "segments recreated: max_split_size_mb too small", "segments.recreated",
        sites=[apply], conf="max_split_size_mb:24", remedy="expandable_segments:True",
    )  # fmt: skip
