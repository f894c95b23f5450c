"""Operations of PyTorch on a model: scripting, export, compilation, copies, files, and wrappers.

``wrapped_models.py`` runs each with and without vramscope's hooks. An operation gets a ``Setup``
and returns lines of text: its results to the last bit.
"""

import copy
import hashlib
import io
import os
import pickle
import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import record_function

WIDTH = 16
OPERATIONS = {}
#: Operations that need a GPU.
ON_GPU_ONLY = set()


def operation(function):
    OPERATIONS[function.__name__] = function
    return function


def gpu_operation(function):
    ON_GPU_ONLY.add(function.__name__)
    return operation(function)


class Setup:
    """The device of an operation, and how its models get hooks."""

    def __init__(self, device, watch):
        self.device = device
        #: Puts vramscope's hooks on a model; does nothing in the run without vramscope.
        self.watch = watch

    def model(self, kind=None):
        """Returns a new model with hooks."""
        torch.manual_seed(7)
        model = (kind or Net)().to(self.device)
        self.watch(model)
        return model

    def batch(self, seed=0, size=4):
        draw = torch.Generator().manual_seed(seed)
        return torch.randn(size, WIDTH, generator=draw).to(self.device)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.second(functional.relu(self.first(x)))


class SpannedNet(Net):
    """A model that names a part of its forward pass."""

    def forward(self, x):
        with record_function("first"):
            x = functional.relu(self.first(x))
        return self.second(x)


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x):
        return self.relu(self.norm(self.conv(x)))


class Outer(nn.Module):
    """A model that contains a model with hooks of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


class OwnSpan(record_function):
    """A program's own kind of span."""

    def __enter__(self):
        return super().__enter__()


def spanned_function(x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.profiler.record_function("doubled"):
        y = x * 2
    return y + 1


def bits(tensor):
    """Returns a hash of a tensor's bytes."""
    data = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


def train(model, batches, optimizer=None):
    """Trains for a step a batch; returns losses and gradients."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    lines = []
    for batch in batches:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lines.append(loss.item().hex())
    return lines


def batches(setup, count=4):
    return [setup.batch(seed) for seed in range(count)]


def message(call):
    """Returns an error's type and text; the result if there is none."""
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@operation
def script_of_function(setup):
    scripted = torch.jit.script(spanned_function)
    return [scripted.code, bits(scripted(setup.batch()))]


@operation
def script_of_model(setup):
    scripted = torch.jit.script(setup.model())
    return [scripted.code, *train(scripted, batches(setup))]


@operation
def script_of_model_with_spans(setup):
    scripted = torch.jit.script(setup.model(SpannedNet))
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    return [scripted.code, *train(torch.jit.load(file), batches(setup))]


@operation
def script_of_trained_model(setup):
    model = setup.model(SpannedNet)
    lines = train(model, batches(setup))
    return [*lines, *train(torch.jit.script(model), batches(setup))]


@operation
def trace_of_model(setup):
    model = setup.model()
    traced = torch.jit.trace(model, setup.batch())
    return [str(traced.graph), traced.code, *train(traced, batches(setup))]


@operation
def symbolic_trace(setup):
    model = setup.model()
    outer = torch.fx.symbolic_trace(Outer(model))
    return [torch.fx.symbolic_trace(model).code, outer.code, bits(outer(setup.batch()))]


def exported(setup, strict, kind=Net):
    model = setup.model(kind)
    program = torch.export.export(model, (setup.batch(),), strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file)
    return [program.graph_module.code, bits(loaded.module()(setup.batch()))]


@operation
def export(setup):
    return exported(setup, strict=False)


@operation
def export_strict(setup):
    return exported(setup, strict=True)


@operation
def export_with_spans(setup):
    return exported(setup, strict=False, kind=SpannedNet)


@operation
def export_strict_with_spans(setup):
    return exported(setup, strict=True, kind=SpannedNet)


def compiled(setup, backend, kind=Net):
    """Trains a model compiled with one graph; counts graphs and compilations."""
    from torch._dynamo.utils import counters

    model = setup.model(kind)
    fast = torch.compile(model, backend=backend, fullgraph=True)
    lines = train(fast, batches(setup, 6))
    return [*lines, f"graphs {counters['stats']['unique_graphs']}, breaks {dict(counters['graph_break'])}"]


@operation
def compile_eager(setup):
    return compiled(setup, "eager")


@operation
def compile_aot_eager_with_spans(setup):
    return compiled(setup, "aot_eager", SpannedNet)


@operation
def compile_inductor(setup):
    return compiled(setup, "inductor")


@operation
def compile_before_hooks(setup):
    from torch._dynamo.utils import counters

    torch.manual_seed(7)
    model = Net().to(setup.device)
    fast = torch.compile(model, backend="aot_eager", fullgraph=True)
    lines = train(fast, batches(setup, 2))
    setup.watch(model)
    lines += train(fast, batches(setup, 6))
    return [*lines, f"graphs {counters['stats']['unique_graphs']}"]


@operation
def compile_of_step(setup):
    """Compiles a step of the optimizer, which PyTorch splits into several graphs."""
    from torch._dynamo.utils import counters

    model = setup.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = torch.compile(optimizer.step, backend="aot_eager")
    lines = []
    for batch in batches(setup):
        loss = model(batch).square().mean()
        loss.backward()
        lines.append(loss.item().hex())
        step()
        optimizer.zero_grad()
    return [*lines, f"graphs {counters['stats']['unique_graphs']}, breaks {dict(counters['graph_break'])}"]


@operation
def compile_of_backward(setup):
    """A function that computes gradients, compiled in one graph or with breaks."""
    model = setup.model()

    def gradients(x):
        model(x).square().mean().backward()
        return x + 1

    whole = torch.compile(gradients, backend="eager", fullgraph=True)
    parts = torch.compile(gradients, backend="eager")
    return [message(lambda: bits(whole(setup.batch()))).partition("Hint")[0], bits(parts(setup.batch())),
            bits(model.first.weight.grad)]


@operation
def compile_of_function_with_spans(setup):
    fast = torch.compile(spanned_function, backend="eager", fullgraph=True)
    return [bits(fast(setup.batch()))]


@operation
def explain(setup):
    found = torch._dynamo.explain(setup.model(SpannedNet))(setup.batch())
    return [f"graphs {found.graph_count}, breaks {found.graph_break_count}", str(found.break_reasons)]


@operation
def deep_copy(setup):
    model = setup.model(SpannedNet)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    lines = train(model, batches(setup, 2), optimizer)
    other = copy.deepcopy(model)
    copied_optimizer = copy.deepcopy(optimizer)
    lines += train(model, batches(setup), optimizer) + train(other, batches(setup))
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(model)
    return [*lines, str(copied_optimizer.state_dict()["param_groups"]), bits(averaged(setup.batch()))]


@operation
def pickled(setup):
    model = setup.model()
    lines = train(model, batches(setup, 2))
    return [*lines, *train(pickle.loads(pickle.dumps(model)), batches(setup))]


@operation
def saved_and_loaded_elsewhere(setup):
    """A saved model, loaded by a process without vramscope."""
    model = setup.model()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt")
        torch.save(model, path)
        code = (
            "import sys, torch; sys.modules['vramscope'] = None; import model_operations as m;"
            f"net = torch.load({path!r}, weights_only=False);"
            f"print(m.train(net, m.batches(m.Setup({setup.device!r}, None))))"
        )
        environment = os.environ | {"PYTHONPATH": os.path.dirname(os.path.abspath(__file__))}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        return [done.stdout]


@operation
def load_of_allowed_types(setup):
    """A saved model, loaded with the types that the program allows."""
    model = setup.model()
    file = io.BytesIO()
    torch.save(model, file)
    allowed = [Net, nn.Linear, set]
    file.seek(0)
    refused = message(lambda: torch.load(file))
    file.seek(0)
    with torch.serialization.safe_globals(allowed):
        loaded = torch.load(file)
    return [refused, *train(loaded, batches(setup))]


@operation
def state_dict(setup):
    model = setup.model()
    optimizer = torch.optim.AdamW(model.parameters())
    lines = train(model, batches(setup, 2), optimizer)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    return [*lines, hashlib.sha256(file.getvalue()).hexdigest()]


@operation
def functional_transforms(setup):
    model = setup.model(SpannedNet)
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters, x):
        return torch.func.functional_call(model, parameters, (x,)).square().mean()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, setup.batch())
    return [f"{name} {bits(value)}" for name, value in gradients.items()]


@operation
def checkpoints(setup):
    model = setup.model(SpannedNet)
    lines = []
    for reentrant in (True, False):
        x = setup.batch().requires_grad_()
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant).sum().backward()
        lines.append(bits(x.grad))
    return lines


@operation
def quantization(setup):
    model = setup.model().cpu()
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    return [str(quantized), bits(quantized(setup.batch().cpu()))]


@operation
def fused_modules(setup):
    lines = []
    for inplace in (False, True):
        torch.manual_seed(7)
        model = ConvNet().to(setup.device).eval()
        # The layer is a model of its own as long as no model contains it.
        conv = model.conv
        del model.conv
        setup.watch(conv)
        model.conv = conv
        fused = torch.ao.quantization.fuse_modules(model, ["conv", "norm", "relu"], inplace=inplace)
        lines += [str(fused), bits(fused(torch.ones(2, 1, 8, 8, device=setup.device)))]
    return lines


@operation
def errors_of_calls(setup):
    model = setup.model()
    return [
        message(lambda: model(torch.zeros(2, 3, device=setup.device))), message(lambda: model()),
        message(lambda: model(setup.batch(), 1)), message(lambda: model(y=1)),
        message(lambda: setup.batch().sum().backward()),
        message(lambda: torch.autograd.backward([], nothing=1)),
        message(lambda: record_function()), message(lambda: record_function(1).__enter__()),
        message(lambda: copy.deepcopy(record_function("span")).name),
        message(lambda: type(pickle.loads(pickle.dumps(record_function("span"))))),
    ]


@operation
def spans(setup):
    """Spans in all forms that the profiler counts."""

    @record_function("decorated")
    def decorated(x):
        return x + 1

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model = setup.model(SpannedNet)
        train(model, batches(setup, 2))
        with OwnSpan("own", "arguments") as span:
            decorated(setup.batch())
        message(lambda: span.__exit__(None, None, None))
    names = {event.key: event.count for event in profile.key_averages()}
    found = {name: names.get(name) for name in ("first", "own", "decorated", "Optimizer.step#AdamW.step")}
    return [str(found), str(record_function.__mro__), record_function.__enter__.__name__]


@gpu_operation
def graphed_callables(setup):
    """A model whose passes are CUDA graphs."""
    model = setup.model()
    graphed = torch.cuda.make_graphed_callables(model, (setup.batch().requires_grad_(),))
    return train(graphed, batches(setup))


@operation
def distributed_data_parallel(setup):
    from torch.nn.parallel import DistributedDataParallel

    with process_group(setup):
        lines = []
        for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
            wrapped = DistributedDataParallel(setup.model(SpannedNet), **options)
            lines += train(wrapped, batches(setup))
        fast = torch.compile(DistributedDataParallel(setup.model()), backend="aot_eager")
        return lines + train(fast, batches(setup))


@operation
def fully_sharded(setup):
    from torch.distributed.fsdp import fully_shard

    with process_group(setup) as mesh:
        model = setup.model(SpannedNet)
        for layer in (model.first, model.second):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        lines = train(model, batches(setup))
        return [*lines, *(f"{name} {bits(value.full_tensor())}" for name, value in model.state_dict().items())]


@operation
def fully_sharded_after_training(setup):
    from torch.distributed.fsdp import fully_shard

    with process_group(setup) as mesh:
        model = setup.model()
        lines = train(model, batches(setup, 1))
        fully_shard(model, mesh=mesh)
        setup.watch(model)
        return lines + train(model, batches(setup))


class process_group:
    """A group of this process alone; yields its mesh of devices."""

    def __init__(self, setup):
        self._device = torch.device(setup.device).type

    def __enter__(self):
        file = tempfile.mktemp(prefix="group-")
        backend = "nccl" if self._device == "cuda" else "gloo"
        torch.distributed.init_process_group(backend, init_method=f"file://{file}", rank=0, world_size=1)
        return torch.distributed.init_device_mesh(self._device, (1,))

    def __exit__(self, *_):
        torch.distributed.destroy_process_group()
