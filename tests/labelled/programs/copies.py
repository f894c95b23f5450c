"""Programs with two copies of the weights or of the optimizer's state on the GPU."""

from .compose import FAULT, program
from .training import Parts, add_train_step, bookkeeping, start_bookkeeping, training

LABEL = "copies: "


def small(family):
    """Returns the arguments of `training` for a small batch; an MLP has many parameters anyway."""
    return {"batch_scale": 0.05, "heavy_parameters": family != "mlp"}


# The kinds whose copy is used in no step.
NEEDLESS = {
    "loaded": ("a checkpoint loaded on the GPU and kept", "copies.weights", "map_location=cpu"),
    "deepcopy": ("a copy of the model before training", "copies.weights", "keep the copy on the CPU"),
    "second": ("a second model that is not used", "copies.weights", "remove the second model"),
    "optimizer": ("a loaded state of the optimizer kept", "copies.optimizer", "map_location=cpu"),
}
SAVE = """
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "checkpoint.pt")
    {save}
    {load}
"""


def needless(draw, family="mlp", kind="loaded", late=False):
    """Keeps a copy that no step uses."""
    optimizer = "torch.optim.AdamW(model.parameters(), lr=1e-3)"
    parts = training(draw, family, optimizer=optimizer, **small(family))
    script, copy = parts.script, draw.name()
    if late:
        script.start_history()
    {"loaded": loaded, "deepcopy": copied, "second": second, "optimizer": loaded_optimizer}[kind](
        draw, parts, copy
    )
    start_bookkeeping(script)
    script.loop(draw.int(10, 14), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    script.do(
        {
            "loaded": 'print(checkpoint["epoch"])',
            "deepcopy": "print(len(list(initial.parameters())))",
            "second": "print(other.training)",
            "optimizer": 'print(len(saved["state"]))',
        }[kind]
    )
    label, finding, remedy = NEEDLESS[kind]
    count = 2 if finding == "copies.optimizer" else 1
    return program(
        draw, script, LABEL + label, finding, parts.family, remedy=remedy, has_fix=True,
        bytes=count * parts.family.parameter_bytes,
    )  # fmt: skip


def loaded(draw, parts, copy):
    """Loads a checkpoint on the GPU; the dictionary stays."""
    script, device = parts.script, '"cpu"' if draw.fixed else "DEVICE"
    script.use("import os", "import tempfile")
    script.function(
        f"""
        def $copy(path, model):
            checkpoint = torch.load(path, map_location={device}){FAULT}
            model.load_state_dict(checkpoint["model"])
            return checkpoint
        """,
        copy=copy,
    )
    save = 'torch.save({"model": build_model().state_dict(), "epoch": 3}, path)'
    script.do(SAVE.format(save=save, load=f"checkpoint = {copy}(path, model)"))


def copied(draw, parts, copy):
    """Copies the model before training."""
    parts.script.use("import copy")
    line = "build_model()" if draw.fixed else f"copy.deepcopy(model){FAULT}"
    parts.script.function(f"def $copy(model):\n    return {line}", copy=copy)
    parts.script.do(f"initial = {copy}(model)")


def second(draw, parts, copy):
    """Builds a second model for a comparison that is never made."""
    line = "build_model()" if draw.fixed else f"build_model().to(DEVICE){FAULT}"
    parts.script.function(f"def $copy():\n    return {line}", copy=copy)
    # The model itself is built in a function, too.
    begin = draw.name()
    parts.script.function("def $begin():\n    return build_model().to(DEVICE)", begin=begin)
    main = parts.script.main
    main[:] = [text.replace("build_model().to(DEVICE)", f"{begin}()") for text in main]
    main.append(f"other = {copy}()")


def loaded_optimizer(draw, parts, copy):
    """Copies a saved state into the tensors of the optimizer, and keeps the saved one."""
    script, device = parts.script, '"cpu"' if draw.fixed else "DEVICE"
    script.use("import os", "import tempfile")
    script.function(
        f"""
        def $copy(path, optimizer):
            saved = torch.load(path, map_location={device}){FAULT}
            for index, state in enumerate(optimizer.state.values()):
                for key, value in saved["state"][index].items():
                    state[key].copy_(value)
            return saved
        """,
        copy=copy,
    )
    # A first step allocates the state.
    script.do(f"{parts.train}(model, optimizer, BATCH)")
    script.do(SAVE.format(save="torch.save(optimizer.state_dict(), path)", load=f"saved = {copy}(path, optimizer)"))


KINDS = {
    "average": "a moving average that each step updates",
    "reference": "a frozen model that each step compares with",
    "pair": "two models that are both trained",
    "host": "a checkpoint kept on the CPU",
}


def needed(draw, family="mlp", kind="average", late=False):
    """Keeps a second copy that the steps use, or one on the CPU."""
    optimizer = "torch.optim.AdamW(model.parameters(), lr=1e-3)"
    parts = training(draw, family, optimizer=optimizer, train_step=kind in ("average", "host"), **small(family))
    script = parts.script
    call = f"loss = {parts.train}(model, optimizer, BATCH)"
    if kind == "average":
        script.use("from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn")
        script.do("averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))")
        call += "\naveraged.update_parameters(model)"
    elif kind == "reference":
        call = reference(draw, parts)
    elif kind == "pair":
        call = pair(draw, parts)
    else:
        draw.fixed = True
        loaded(draw, parts, draw.name())
    if late:
        script.start_history()
    start_bookkeeping(script)
    script.loop(draw.int(10, 14), f"{call}\n{bookkeeping(draw)}")
    finished = {"average": "print(int(averaged.n_averaged))", "host": 'print(checkpoint["epoch"])'}
    if kind in finished:
        script.do(finished[kind])
    return program(draw, script, f"none ({KINDS[kind]})", "none", parts.family, near="copies.weights")


def reference(draw, parts):
    """Trains with a penalty for the distance from a frozen copy. Returns the call of a step."""
    parts.script.use("import copy")
    parts.script.function(
        """
        def $train(model, frozen, optimizer, batch):
            inputs, targets = $batch(batch)
            with torch.no_grad():
                wanted = frozen(inputs).log_softmax(dim=-1)
            outputs = model(inputs).log_softmax(dim=-1)
            loss = functional.nll_loss(outputs.flatten(0, -2), targets.flatten())
            loss = loss + functional.kl_div(outputs, wanted, reduction="batchmean", log_target=True)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()
        """,
        train=parts.train, batch=parts.batch,
    )  # fmt: skip
    parts.script.functions = [it for it in parts.script.functions if f"def {parts.loss}(" not in it]
    parts.script.do("frozen = copy.deepcopy(model).eval().requires_grad_(False)")
    return f"loss = {parts.train}(model, frozen, optimizer, BATCH)"


def pair(draw, parts):
    """Trains two models that learn from each other. Returns the call of a step."""
    names = Parts(parts.script, parts.family, parts.batch, parts.loss, draw.name())
    add_train_step(draw, names)
    parts.script.function(
        """
        def $train(pair, optimizers, batch):
            losses = [$step(model, optimizer, batch) for model, optimizer in zip(pair, optimizers)]
            return sum(losses) / 2
        """,
        train=parts.train, step=names.train,
    )  # fmt: skip
    parts.script.do(
        """
        rival = build_model().to(DEVICE)
        pair = (model, rival)
        optimizers = (optimizer, torch.optim.AdamW(rival.parameters(), lr=5e-4))
        """
    )
    return f"loss = {parts.train}(pair, optimizers, BATCH)"
