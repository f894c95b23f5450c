"""Programs in which optimizer states, gradients or activations dominate."""

from .compose import FAULT, Script, program
from .training import OPTIMIZERS, add_train_step, bookkeeping, start_bookkeeping, training


# In place of an optimizer with states, to measure what the states cost.
STATELESS = "torch.optim.SGD(model.parameters(), lr=0.1)"


def optimizer_states(draw, family=None, kind=None):
    """Adam on a model with many parameters and a small batch."""
    kind = kind or draw.choice(("amsgrad", "master"))
    small = {"batch_scale": 0.06, "heavy_parameters": True, "train_step": False, "optimizer": False}
    parts = training(draw, family, **small)
    script = parts.script
    if kind == "amsgrad":
        name = draw.choice(("Adam", "AdamW"))
        optimizer = f"torch.optim.{name}(model.parameters(), lr=1e-3, amsgrad=True)"
        label, share = "optimizer state dominates (three states a parameter)", 3
        script.do("optimizer = $optimizer", optimizer=STATELESS if draw.fixed else optimizer)
        add_train_step(draw, parts)
        train = script.functions[-1].replace("optimizer.step()", "optimizer.step()" + FAULT)
        script.functions[-1] = train
        sites = [parts.train]
    else:
        script.use("from optimizer import MixedAdam")
        script.do("model.to(torch.bfloat16)")
        optimizer = STATELESS if draw.fixed else "MixedAdam(model.parameters())"
        script.do("optimizer = $optimizer", optimizer=optimizer)
        label, share = "optimizer state dominates (float32 copies and two states)", 3
        add_train_step(draw, parts)
        # The inputs of these families are indices or are cast.
        script.functions = [it.replace("model(inputs)", "model(cast(inputs)).float()") for it in script.functions]
        script.function("def cast(x):\n    return x.bfloat16() if x.is_floating_point() else x")
        sites = ["step", parts.train]
    start_bookkeeping(script)
    script.loop(draw.int(5, 8), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    files = {"optimizer.py": MIXED_ADAM.strip("\n").replace("#!", FAULT.strip())} if kind == "master" else None
    return program(
        draw, script, label, "dominant.optimizer", parts.family, files, sites=sites,
        remedy="8-bit states", has_fix=True, bytes=share * parts.family.parameter_bytes,
    )  # fmt: skip


MIXED_ADAM = '''
"""Adam with float32 states for a model in bfloat16."""

import torch


class MixedAdam:
    def __init__(self, parameters, lr=1e-3):
        self.parameters = list(parameters)
        self.lr = lr
        self.state = {}

    def zero_grad(self, set_to_none=True):
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        for parameter in self.parameters:
            if parameter not in self.state:
                copy = parameter.float()
                self.state[parameter] = (copy, torch.zeros_like(copy), torch.zeros_like(copy))  #!
            copy, mean, square = self.state[parameter]
            gradient = parameter.grad.float()
            mean.lerp_(gradient, 0.1)
            square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
            copy.addcdiv_(mean, square.sqrt_().add_(1e-8), value=-self.lr)
            square.square_()
            parameter.copy_(copy)
'''


def gradients(draw, family=None, kind=None):
    """Gradients in float32 copies, one copy for each task, or kept while an evaluation runs."""
    kind = kind or draw.choice(("tasks", "float32"))
    small = {"batch_scale": 0.06, "heavy_parameters": True, "train_step": False}
    parts = training(draw, family, optimizer="torch.optim.SGD(model.parameters(), lr=0.01)", **small)
    script, gather, apply = parts.script, draw.name(), draw.name()
    start_bookkeeping(script)
    if kind == "tasks":
        tasks = draw.int(3, 5)
        script.constant("TASKS", tasks)
        if draw.fixed:
            keep, use = "pass", "for parameter in model.parameters():\n                parameter.grad /= TASKS"
        else:
            keep = f"copies.append([it.grad.clone() for it in model.parameters()]){FAULT}"
            keep += "\n                model.zero_grad()"
            use = "for index, parameter in enumerate(model.parameters()):\n"
            use += "                scale = torch.stack([copy[index].mean() for copy in copies]).mean()\n"
            use += "                parameter.grad = scale * copies[0][index]"
        script.function(
            f"""
        def $gather(model, optimizer, batch):
            copies = []
            for _ in range(TASKS):
                inputs, targets = $batch(batch)
                loss = $loss(model, inputs, targets)
                loss.backward()
                {keep}
            {use}
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return loss.item()
            """,
            gather=gather, batch=parts.batch, loss=parts.loss,
        )  # fmt: skip
        label, remedy = "gradients dominate (one copy a task)", "add gradients up"
        size = tasks * parts.family.parameter_bytes
    else:
        script.do("model.to(torch.bfloat16)\nsums = {}")
        script.functions = [it.replace("model(inputs)", "model(cast(inputs)).float()") for it in script.functions]
        script.function("def cast(x):\n    return x.bfloat16() if x.is_floating_point() else x")
        add = "pass" if draw.fixed else f"sums[index] = sums.get(index, 0) + parameter.grad.float(){FAULT}"
        copy = "pass" if draw.fixed else "parameter.grad.copy_(sums[index])"
        script.function(
            f"""
        def $gather(model, optimizer, batch, sums):
            for part in range(2):
                inputs, targets = $batch(batch)
                loss = $loss(model, inputs, targets)
                loss.backward()
                $apply(model, sums)
            for index, parameter in enumerate(model.parameters()):
                {copy}
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad.zero_()
            for value in sums.values():
                value.zero_()
            return loss.item()
            """,
            gather=gather, batch=parts.batch, loss=parts.loss, apply=apply,
        )  # fmt: skip
        script.function(
            f"""
            def $apply(model, sums):
                for index, parameter in enumerate(model.parameters()):
                    {add}
            """,
            apply=apply,
        )
        label, remedy = "gradients dominate (float32 sums beside bfloat16)", "accumulate in bfloat16"
        size = parts.family.parameter_bytes
    call = f"{gather}(model, optimizer, BATCH{', sums' if kind == 'float32' else ''})"
    script.loop(draw.int(5, 8), f"loss = {call}\n{bookkeeping(draw)}")
    return program(
        draw, script, label, "dominant.gradients", parts.family, sites=[gather, apply],
        remedy=remedy, has_fix=True, bytes=size,
    )  # fmt: skip


def kept_gradients(draw, family=None):
    """Gradients that are zeroed and not set to None stay while a large evaluation runs."""
    small = {"batch_scale": 0.06, "heavy_parameters": True, "train_step": False}
    parts = training(draw, family, optimizer="torch.optim.SGD(model.parameters(), lr=0.01)", **small)
    script, train, evaluate = parts.script, draw.name(), draw.name()
    keep = "set_to_none=True)" if draw.fixed else f"set_to_none=False){FAULT}"
    script.function(
        f"""
        def $train(model, optimizer):
            inputs, targets = $batch(BATCH)
            loss = $loss(model, inputs, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad({keep}
            return loss.item()
        """,
        train=train, batch=parts.batch, loss=parts.loss,
    )  # fmt: skip
    script.function(
        """
        @torch.no_grad()
        def $evaluate(model):
            inputs, targets = $batch(2 * BATCH)
            return $loss(model, inputs, targets).item()
        """,
        evaluate=evaluate, batch=parts.batch, loss=parts.loss,
    )  # fmt: skip
    start_bookkeeping(script)
    script.loop(draw.int(5, 8), f"loss = {train}(model, optimizer)\nvalue = {evaluate}(model)\n{bookkeeping(draw)}")
    return program(
        draw, script, "gradients dominate (zeroed, not set to None)", "dominant.gradients", parts.family,
        sites=[train], remedy="set_to_none=True", has_fix=True,
    )  # fmt: skip


def activations(draw, family=None):
    """Many blocks and a large batch; the blocks can be checkpointed."""
    family = family or draw.choice(("transformer", "mlp", "conv"))
    layers = draw.int(8, 12)
    scale = {"conv": 4, "mlp": 10, "transformer": 8}.get(family, 8)
    parts = training(draw, family, optimizer=OPTIMIZERS[2], layers=layers, batch_scale=scale, train_step=False)
    script = parts.script
    add_train_step(draw, parts)
    script.functions[-1] = mark(script.functions[-1], f"{parts.loss}(model, inputs, targets)")
    start_bookkeeping(script)
    script.loop(draw.int(4, 5), f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return program(
        draw, script, "activations dominate", "dominant.activations", parts.family,
        sites=[parts.train, parts.loss], remedy="checkpoint blocks",
    )  # fmt: skip


def mark(function, ending):
    """Marks the line of a function that ends so as the line at fault."""
    return "\n".join(line + FAULT if line.endswith(ending) else line for line in function.split("\n"))


def growing_batch(draw, family=None):
    """Doubles the batch until the activations do not fit under the cap."""
    parts = training(draw, family, batch_scale=0.25, train_step=False)
    script = parts.script
    add_train_step(draw, parts)
    script.functions[-1] = mark(script.functions[-1], f"{parts.loss}(model, inputs, targets)")
    # Parameters, gradients and states take four parts, the first activations about one.
    script.limit(parts.family.parameter_bytes * 8 + (192 << 20))
    start_bookkeeping(script)
    script.do("batch = BATCH")
    catch = draw.choice((True, False))
    train = f"loss = {parts.train}(model, optimizer, batch)"
    if catch:
        train = f"try:\n    {train}\nexcept torch.OutOfMemoryError as error:\n    print(batch, error)\n    break"
    script.loop(10, f"{train}\n{bookkeeping(draw)}\nif step % 2:\n    batch *= 2")
    return program(
        draw, script, "oom: activations grew with the batch", "oom.activations", parts.family,
        sites=[parts.train, parts.loss], remedy="smaller batch",
    )  # fmt: skip


def first_step(draw, family=None):
    """The optimizer's state, which the first step allocates, does not fit under the cap."""
    family = family or draw.choice(("mlp", "transformer"))
    small = {"batch_scale": 0.03, "heavy_parameters": True, "train_step": False}
    optimizer = draw.choice(OPTIMIZERS[:2])
    parts = training(draw, family, optimizer=optimizer, **small)
    script = parts.script
    add_train_step(draw, parts)
    script.functions[-1] = mark(script.functions[-1], "optimizer.step()")
    script.limit(int(parts.family.parameter_bytes * 3) + (96 << 20))
    start_bookkeeping(script)
    script.do("report(-1)")
    script.loop(5, f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return program(
        draw, script, "oom: optimizer state allocated in the first step", "oom.optimizer_state", parts.family,
        sites=[parts.train], remedy="8-bit states", bytes=2 * parts.family.parameter_bytes,
    )  # fmt: skip


def too_small_cap(draw, family=None):
    """The cap is smaller than the parameters."""
    parts = training(draw, family or draw.choice(("mlp", "transformer")), heavy_parameters=True, optimizer=False)
    script, begin = parts.script, draw.name()
    script.main.clear()
    script.limit(max(32 << 20, int(parts.family.parameter_bytes * draw.choice((0.5, 0.6, 0.7)))))
    script.function(f"def $begin():\n    model = build_model()\n    return model.to(DEVICE){FAULT}", begin=begin)
    script.do(f"report(-1)\nmodel = {begin}()")
    script.do("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)")
    start_bookkeeping(script)
    script.loop(3, f"loss = {parts.train}(model, optimizer, BATCH)\n{bookkeeping(draw)}")
    return program(
        draw, script, "oom: the cap is smaller than the parameters", "oom.parameters", parts.family,
        sites=[begin], remedy="a larger cap", bytes=parts.family.parameter_bytes,
    )  # fmt: skip


def never_fits(draw, over="device"):
    """A request larger than the device, or than the cap."""
    script = Script(draw, draw.choice(("Compares all pairs.", "Clusters points.")))
    over_device = over == "device"
    rows = draw.int(260_000, 330_000, 2000) if over_device else draw.int(24_000, 30_000, 1000)
    compare, begin = draw.name(), draw.name()
    columns = draw.choice((64, 96))
    script.function(f"def $begin(rows):\n    return torch.randn(rows, {columns}, device=DEVICE)", begin=begin)
    zeros = "points.new_zeros(len(points), len(points))"
    kind = draw.choice(("points @ points.T", "torch.cdist(points, points)", zeros))
    body = f"distances = {kind}{FAULT}\n    return distances.mean().item()"
    script.function(f"def $compare(points):\n    {body}", compare=compare)
    if not over_device:
        script.limit(rows * rows * 2)
    script.do("points = $begin(4000)\nprint($compare(points))\nreport(0)", begin=begin, compare=compare)
    attempt = f"points = {begin}({rows})\nprint({compare}(points))"
    if draw.choice((True, False)):
        attempt = "try:\n" + "\n".join(f"    {line}" for line in attempt.split("\n"))
        attempt += f"\nexcept torch.OutOfMemoryError as error:\n    print(error)\n    print({compare}(points[:5000]))"
    script.do(attempt)
    script.do("report(1)")
    finding = "oom.never_fits"
    return program(
        draw, script, f"oom: a request larger than the {'device' if over_device else 'cap'}", finding,
        sites=[compare], remedy="a smaller request", bytes=4 * rows * rows,
    )  # fmt: skip
