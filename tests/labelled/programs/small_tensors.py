"""Programs with many small tensors, of sizes that are rounded up much, little or not at all."""

from .compose import FAULT, Script, program

FINDING = "waste.small_tensors"
COUNT = 144_000
# All tensors are allocated and freed within the history.
MAX_ENTRIES = 700_000


def averages(draw, dominated=False):
    """Keeps the loss of each sample as a tensor of its own, beside a small or a large model."""
    script = Script(draw, draw.choice(("Trains with weighted samples.", "Trains with a curriculum.")))
    script.use("from torch import nn", "from torch.nn import functional")
    script.constant("SAMPLES", COUNT)
    begin, draw_batch, train, follow = draw.name(), draw.name(), draw.name(), draw.name()
    width, batch = (6144, 512) if dominated else (1024, draw.choice((512, 640, 768)))
    wide = 26_624 if dominated else 4 * width
    made = (
        "torch.zeros(SAMPLES, device=DEVICE)"
        if draw.fixed and not dominated
        else "[torch.zeros((), device=DEVICE) for _ in range(SAMPLES)]"
    )
    script.function(f"def $begin():\n    return {made}{FAULT}", begin=begin)
    script.function(
        f"""
        def $draw_batch():
            indices = torch.randint(SAMPLES, ({draw.batch(batch)},)).tolist()
            return indices, torch.randn(len(indices), {width}, device=DEVICE)
        """,
        draw_batch=draw_batch,
    )
    script.function(
        """
        @torch.no_grad()
        def $follow(averages, indices, losses):
            for index, loss in zip(indices, losses):
                averages[index].lerp_(loss, 0.1)
        """,
        follow=follow,
    )
    script.function(
        """
        def $train(model, optimizer, averages):
            indices, inputs = $draw_batch()
            losses = functional.mse_loss(model(inputs), inputs, reduction="none").mean(dim=1)
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            $follow(averages, indices, losses.detach())
            return losses.mean().item()
        """,
        train=train, draw_batch=draw_batch, follow=follow,
    )  # fmt: skip
    script.do(
        f"""
        model = nn.Sequential(nn.Linear({width}, {wide}), nn.ReLU(), nn.Linear({wide}, {width})).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        averages = {begin}()
        """
    )
    script.loop(draw.int(8, 12), f"loss = {train}(model, optimizer, averages)\nprint(step, loss)")
    if dominated:
        return program(
            draw, script, "none (small tensors beside a large model)", "none", near=FINDING, max_entries=MAX_ENTRIES
        )
    return program(
        draw, script, "rounding waste: a tensor of 4 bytes for each sample", FINDING, sites=[begin],
        remedy="one tensor for all samples", has_fix=True, max_entries=MAX_ENTRIES, bytes=COUNT * 508,
    )  # fmt: skip


def documents(draw, exact=False):
    """Keeps each document as a tensor: of odd sizes, or (`exact`) of multiples of 512 B."""
    script = Script(draw, draw.choice(("Classifies documents.", "Trains on sparse features.")))
    script.use("from torch import nn", "from torch.nn import functional")
    script.constant("DOCUMENTS", COUNT)
    features, width = draw.int(30_000, 40_000, 1000), 128
    script.constant("FEATURES", features)
    load, collate, train = draw.name(), draw.name(), draw.name()
    if exact:
        lengths, mean = "(torch.randint(1, 4, (DOCUMENTS,)) * 128).tolist()", None
    else:
        # 520 to 700 bytes of int32, which take 1,024.
        lengths, mean = "torch.randint(130, 176, (DOCUMENTS,)).tolist()", 4 * 152.5
    if draw.fixed and not exact:
        made = "list(flat.to(DEVICE).split(lengths))"
    else:
        made = f"[row.to(DEVICE) for row in flat.split(lengths)]{FAULT}"
    script.function(
        f"""
        def $load():
            lengths = {lengths}
            flat = torch.randint(FEATURES, (sum(lengths),), dtype=torch.int32)
            return {made}
        """,
        load=load,
    )
    script.function(
        """
        def $collate(documents, indices):
            rows = [documents[index] for index in indices]
            ends = torch.tensor([0] + [len(row) for row in rows[:-1]], dtype=torch.int32).cumsum(0)
            return torch.cat(rows), ends.to(torch.int32).to(DEVICE)
        """,
        collate=collate,
    )
    script.function(
        f"""
        def $train(model, head, optimizer, documents):
            indices = torch.randint(DOCUMENTS, ({draw.batch(2048)},)).tolist()
            tokens, offsets = $collate(documents, indices)
            targets = torch.randint(20, (len(indices),), device=DEVICE)
            loss = functional.cross_entropy(head(model(tokens, offsets)), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()
        """,
        train=train, collate=collate,
    )  # fmt: skip
    script.do(
        f"""
        model, head = nn.EmbeddingBag(FEATURES, {width}).to(DEVICE), nn.Linear({width}, 20).to(DEVICE)
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
        documents = {load}()
        """
    )
    script.loop(draw.int(10, 14), f"loss = {train}(model, head, optimizer, documents)\nprint(step, loss)")
    if exact:
        return program(
            draw, script, "none (documents of multiples of 512 bytes)", "none", near=FINDING, max_entries=MAX_ENTRIES
        )
    return program(
        draw, script, "rounding waste: documents of odd sizes", FINDING, sites=[load],
        remedy="one tensor for all documents", has_fix=True, max_entries=MAX_ENTRIES,
        bytes=int(COUNT * (1024 - mean)),
    )  # fmt: skip
